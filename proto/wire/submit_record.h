// What a submit record may ask for, said once for the side that writes it and the side that reads
// it. Thread rule: pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "proto/wire/shm_layout.h"
#include "proto/wire/status.h"

namespace cgx::wire {

enum class Collective : uint8_t {
#define X(name, number, text) k##name = number,
#include "proto/wire/collectives.def"
#undef X
};
bool collective_known(uint8_t number);
std::string_view collective_name(Collective collective);  // "reduce-scatter"

// UNIMPLEMENTED, by name, if the record asks for what nothing here does yet: a collective other
// than allreduce, a root, peer or tag, rows, a timeline word, a field of a later version.
Status check_built(const cgx_submit_record& record);

}  // namespace cgx::wire
