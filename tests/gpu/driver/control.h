/* What the stand-in driver exports besides the driver's functions: orders and questions of tests,
 * looked up by name in the loaded library. A real driver has none of these. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* Words as in CGX_STANDIN; null, or what is wrong with them. Devices, folder and protection only
 * before cuInit. */
const char* cgx_standin_set(const char* words);
/* How often the function was called in this process since it started or since cgx_standin_forget().
 * */
uint64_t cgx_standin_calls(const char* name);
/* Accusations in this process, one a line; empty where there are none. Valid until the next call of
 * this. */
const char* cgx_standin_violations(void);
void cgx_standin_forget(void); /* accusations, counts and faults */
/* What lives now as accusations would say it at the end of the process, one a line. */
const char* cgx_standin_alive(void);
/* "keys", "windows" or "none". */
const char* cgx_standin_protection(void);
/* The device of this number falls off the bus, for all processes that share the folder. */
void cgx_standin_lose(int device);
/* Host functions that stand in for kernels: an array of `count` cgx_standin_twin (twin.h). */
void cgx_standin_add_twins(const void* twins, size_t count);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
