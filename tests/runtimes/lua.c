#include <lua.h>

#include "calls.h"

int luaopen_calls(lua_State *state)
{
    lua_pushinteger(state, pairs(40));
    return 1;
}
