#include <stdio.h>

#include "calls.h"

int main(void)
{
    printf("answered %d\n", pairs(40));
    return 7;
}
