// Communicator, its tensor table: registering and committing.
#include "client/checks.h"
#include "client/communicator.h"

namespace cgx::client {
namespace {

constexpr uint32_t kTensorsMax =
    CGX_COMPLETION_CAPACITY - 64;  // a step's completions fit in the ring
constexpr size_t kTableBatchBytes = wire::kSessionPacketBytesMax / 2;

Status check_kind(const std::string& tensor, int kind) {
  if (kind == CGX_TENSOR_DENSE) return {};
  if (kind == CGX_TENSOR_ROWS) {
    return {StatusCode::kUNIMPLEMENTED,
            "tensor " + tensor + ": tensors of rows are not built yet; dense ones are"};
  }
  return invalid_argument("tensor " + tensor + ": kind " + std::to_string(kind) +
                          " must be CGX_TENSOR_DENSE or CGX_TENSOR_ROWS");
}

}  // namespace

Result<Tensor> Communicator::describe(const cgx_tensor_options& options) {
  Tensor result;
  wire::TensorDescription& about = result.description;
  about.name = options.name ? options.name : "";
  if (about.name.empty() || about.name.size() > wire::kNameBytesMax) {
    return invalid_argument("a tensor's name must have 1 to " + text(wire::kNameBytesMax) +
                            " bytes, not " + text(about.name.size()));
  }
  CGX_RETURN_IF_ERROR(check_types("tensor " + about.name, options.dtype, options.op));
  CGX_RETURN_IF_ERROR(check_kind(about.name, options.kind));
  if (options.dims > wire::kShapeDimsMax || (options.dims > 0 && !options.shape)) {
    return invalid_argument("tensor " + about.name + ": " + text(options.dims) +
                            " dimensions; 0 to " + text(wire::kShapeDimsMax) + " with a shape");
  }
  about.dtype = static_cast<DType>(options.dtype);
  about.op = static_cast<ReduceOp>(options.op);
  about.shape.assign(options.shape, options.shape + options.dims);
  CGX_ASSIGN_OR_RETURN(about.elements,
                       elements_of("tensor " + about.name, about.shape, dtype_bytes(about.dtype)));
  result.bytes = about.elements * dtype_bytes(about.dtype);
  return result;
}

Status Communicator::place_home(Tensor& tensor, void* home) {
  if (!home) {
    CGX_ASSIGN_OR_RETURN(home, device_ ? session_.allocate_on(*device_, tensor.bytes, 64)
                                       : session_.arenas().allocate(tensor.bytes, 64));
    tensor.owned = true;
  }
  tensor.home = static_cast<std::byte*>(home);
  CGX_RETURN_IF_ERROR(check_aligned("the home of tensor " + tensor.description.name, home,
                                    dtype_bytes(tensor.description.dtype)));
  auto place = session_.arenas().locate(home, tensor.bytes, "its home");
  if (place.ok() && session_.arenas().lost(home)) {
    place = invalid_argument(
        "its home lies in memory that a GPU worker had which has died: allocate or import it anew");
  }
  if (!place.ok()) {
    return naming(place.status(), "tensor " + tensor.description.name, tensor.description.elements,
                  tensor.description.dtype);
  }
  tensor.description.home_arena = place->arena;
  tensor.description.home_offset = place->offset;
  tensor.hold = std::move(place->hold);
  return {};
}

// Of a communicator that was cancelled meanwhile.
Status Communicator::give_back(Tensor tensor) {
  tensor.hold = {};
  if (tensor.owned) static_cast<void>(session_.arenas().release(tensor.home).ok());
  return cancelled();
}

Result<uint32_t> Communicator::add_tensor(const cgx_tensor_options& options) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_ASSIGN_OR_RETURN(Tensor tensor, describe(options));
  if (tensors_.size() >= kTensorsMax) {
    return resource_exhausted("communicator " + name_ + " has " + text(kTensorsMax) +
                              " tensors, the most one step can complete");
  }
  const std::string name = tensor.description.name;
  if (!tensor_names_.insert(name).second) {
    return Status(StatusCode::kALREADY_EXISTS,
                  "tensor " + name + " is registered in communicator " + name_);
  }
  use.lock().unlock();  // a new arena is announced over the socket
  const Status placed = place_home(tensor, options.home);
  use.lock().lock();
  if (!placed.ok() || closed_) {
    tensor_names_.erase(name);
    return placed.ok() ? give_back(std::move(tensor)) : placed;
  }
  tensors_.push_back(std::make_unique<Tensor>(std::move(tensor)));
  return static_cast<uint32_t>(tensors_.size() - 1);
}

Result<const Tensor*> Communicator::tensor(uint32_t id) {
  CGX_ASSIGN_OR_RETURN(const Use use, Use::begin(*this, true));
  if (id < tensors_.size()) return const_cast<const Tensor*>(tensors_[id].get());
  return Status(StatusCode::kNOT_FOUND, "tensor " + text(id) + " of " + text(tensors_.size()) +
                                            " in communicator " + name_);
}

// Sends the descriptions not sent yet, in batches that fit in a packet.
Status Communicator::send_table(std::span<const wire::TensorDescription> table) {
  wire::RegisterTensors batch{.comm = handle_, .first = announced_};
  size_t bytes = 0;
  const auto flush = [&]() -> Status {
    CGX_ASSIGN_OR_RETURN(const uint32_t request, session_.socket().post(batch));
    posted_.push_back(request);
    announced_ += static_cast<uint32_t>(batch.tensors.size());
    batch = {.comm = handle_, .first = announced_};
    bytes = 0;
    return {};
  };
  for (const wire::TensorDescription& about : table) {
    batch.tensors.push_back(about);
    bytes += about.name.size() + about.shape.size() * 8 + 64;
    if (bytes >= kTableBatchBytes) CGX_RETURN_IF_ERROR(flush());
  }
  return batch.tensors.empty() ? Status() : flush();
}

Result<wire::Reply> Communicator::report(uint32_t first) {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_ASSIGN_OR_RETURN(wire::Reply page,
                       ask(use, wire::AskReport{.comm = handle_, .first = first}, deadline()));
  if (page.code != StatusCode::kOK) return Status(page.code, page.message);
  return page;
}

Status Communicator::commit() {
  CGX_ASSIGN_OR_RETURN(Use use, Use::begin(*this));
  CGX_RETURN_IF_ERROR(steps_.between_steps());
  if (committing_) return being_committed();
  committing_ = true;
  std::vector<wire::TensorDescription> table;
  for (size_t i = announced_; i < tensors_.size(); ++i) table.push_back(tensors_[i]->description);
  const auto count = static_cast<uint32_t>(tensors_.size());
  use.lock().unlock();
  Status status = send_table(table);
  use.lock().lock();
  if (status.ok()) {
    status = ask(use, wire::Commit{.comm = handle_, .tensors = count}, deadline()).status();
  }
  // A refused description explains a refused commit.
  for (const uint32_t request : std::exchange(posted_, {})) {
    const Status refused = session_.socket().error_of(request);
    if (!refused.ok()) status = refused;
  }
  committing_ = false;
  if (status.ok()) steps_.resize(count);
  return timed_out(status, "cgx_commit");
}

}  // namespace cgx::client
