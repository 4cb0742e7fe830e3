#include "thread_state.h"

_Thread_local struct thread_state thread_state;
