#include <mpi.h>
#include <stdio.h>

#include "calls.h"

/* Two processes, each with half of the pairs. */
int main(int argc, char **argv)
{
    int rank, own, sum = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    own = pairs(20);
    MPI_Reduce(&own, &sum, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("answered %d\n", sum);
    MPI_Finalize();
    return 0;
}
