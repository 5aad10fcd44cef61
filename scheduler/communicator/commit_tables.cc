#include "scheduler/communicator/commit_tables.h"

#include <string_view>
#include <unordered_set>

namespace cgx::scheduler {
namespace {

Status check_home(const wire::TensorDescription& tensor, const RegisteredBy& by) {
  const auto& arenas = by.arena_bytes;
  const uint64_t home = tensor.home_arena < arenas.size() ? arenas[tensor.home_arena] : 0;
  const uint64_t width = dtype_bytes(tensor.dtype);
  const bool fits = tensor.home_offset <= home && tensor.home_offset % width == 0 &&
                    tensor.elements <= (home - tensor.home_offset) / width;
  if (fits) return {};
  return invalid_argument("the home region of tensor '" + tensor.name + "' of rank " +
                          std::to_string(by.rank) + " (" + std::to_string(tensor.elements) +
                          " elements at offset " + std::to_string(tensor.home_offset) +
                          ") is not in its arena of " + std::to_string(home) + " bytes");
}

Result<TensorTable> table_of(const RegisteredBy& by) {
  TensorTable table;
  table.reserve(by.tensors.size());
  Status checked;
  by.tensors.for_each([&](const wire::TensorDescription& tensor) {
    if (checked.ok()) checked = check_home(tensor, by);
    table.push_back(
        {tensor.name, tensor.dtype, tensor.op, tensor.kind, tensor.elements, tensor.shape});
  });
  CGX_RETURN_IF_ERROR(checked);
  std::unordered_set<std::string_view> names;
  for (const TensorDesc& tensor : table) {
    if (names.insert(tensor.name).second) continue;
    return invalid_argument("rank " + std::to_string(by.rank) + " registers tensor '" +
                            tensor.name + "' twice; names are unique");
  }
  return table;
}

std::string name_of(const RegisteredBy& by) {
  return "rank " + std::to_string(by.rank);
}

}  // namespace

uint64_t Registration::bytes_of(const std::vector<wire::TensorDescription>& tensors) {
  uint64_t bytes = tensors.size() * sizeof(wire::TensorDescription);
  for (const wire::TensorDescription& tensor : tensors) {
    bytes += tensor.name.size() + tensor.shape.size() * sizeof(uint64_t);
  }
  return bytes;
}

Result<CommitTable> make_table(std::span<const RegisteredBy> ranks) {
  CGX_ASSIGN_OR_RETURN(TensorTable first, table_of(ranks[0]));
  for (const RegisteredBy& other : ranks.subspan(1)) {
    CGX_ASSIGN_OR_RETURN(const TensorTable theirs, table_of(other));
    const std::string difference =
        first_difference(first, name_of(ranks[0]), theirs, name_of(other));
    if (!difference.empty()) return Status(StatusCode::kMISMATCH, difference);
  }
  std::vector<std::byte> encoded = encode_table(first);
  return CommitTable{std::make_shared<const TensorTable>(std::move(first)), std::move(encoded)};
}

Status compare_tables(const Members& members, const TensorTable& ours,
                      std::span<const EncodedTable> tables) {
  for (uint32_t k = 1; k < tables.size(); ++k) {
    if (tables[k] == tables[0] || *tables[k] == *tables[0]) continue;
    const Result<TensorTable> theirs = decode_table(*tables[k]);
    if (!theirs.ok()) {
      return protocol_error(members.machine_name(k) + ": " + theirs.status().message());
    }
    return {StatusCode::kMISMATCH,
            first_difference(ours, members.ranks_of(0), *theirs, members.ranks_of(k))};
  }
  return {};
}

}  // namespace cgx::scheduler
