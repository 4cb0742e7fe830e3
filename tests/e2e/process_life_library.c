/*
 * A program that reaches the driver through a library which it opens and closes again and again.
 *
 * usage: process_life_library LIBRARY
 */
#include "interposition.h"

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    for (unsigned int i = 1; i <= 3; i++) {
        void *library = open_library(argv[1], RTLD_NOW | RTLD_LOCAL);
        CUresult (*round)(unsigned int) =
            (CUresult(*)(unsigned int))function_of(library, "library_round");
        for (unsigned int j = 0; j < 40; j++)
            CU(round(i * 100 + j));
        CHECK(dlclose(library) == 0);
    }
    return 0;
}
