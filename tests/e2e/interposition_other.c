/*
 * Run with libinterposition_dlsym.so as a second preload: what that one answers must arrive.
 */
#include "interposition.h"

int main(void)
{
    static const char name[] = "answered_by_the_other_preload";
    CHECK(strcmp(object_of(dlsym(RTLD_DEFAULT, name)), "libinterposition_dlsym.so") == 0);
    CHECK(strcmp(object_of(dlsym(RTLD_NEXT, name)), "libinterposition_dlsym.so") == 0);
    return 0;
}
