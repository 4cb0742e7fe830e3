#include <jni.h>

#include "calls.h"

JNIEXPORT jint JNICALL Java_Program_pairs(JNIEnv *environment, jclass class, jint count)
{
    (void)environment, (void)class;
    return pairs(count);
}
