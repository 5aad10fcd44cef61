// What the library exports: the functions of driver.def under the names by which programs look them
// up.
#pragma once

#include "tests/gpu/driver/process.h"

#pragma GCC visibility push(default)
extern "C" {
using namespace cgx::device;
#define X(name, symbol, feature, parameters) CUresult symbol parameters;
#include "proto/device/driver.def"
#undef X
}
#pragma GCC visibility pop
