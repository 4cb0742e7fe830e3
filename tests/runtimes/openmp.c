#include <stdio.h>

#include "calls.h"

int main(void)
{
    int sum = 0;
#pragma omp parallel for num_threads(4) schedule(static, 1) reduction(+ : sum)
    for (int i = 0; i < 4; i++)
        sum += pairs(10);
    printf("answered %d\n", sum);
    return 7;
}
