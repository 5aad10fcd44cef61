#include "transport/tcp_reader.h"

#include <algorithm>
#include <cstring>

namespace cgx::transport {

RecordReader::Room RecordReader::room() {
  Room room;
  const auto add = [&](std::span<std::byte> part) {
    room.parts[room.count++] = {part.data(), part.size()};
    room.bytes += part.size();
  };
  if (in_payload_) add(payload_.subspan(payload_have_));
  if (begin_ > 0) {
    std::memmove(staged_.data(), staged_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  add(std::span(staged_).subspan(end_));
  return room;
}

void RecordReader::filled(size_t bytes) {
  if (in_payload_) {
    const size_t part = std::min(bytes, payload_.size() - payload_have_);
    payload_have_ += part;
    bytes -= part;
  }
  end_ += bytes;
}

Result<bool> RecordReader::next(Opener& opener, Record& record) {
  if (!in_payload_) {
    if (!long_.empty()) std::vector<std::byte>().swap(long_);  // of a record that has been used
    if (!head_open_) CGX_RETURN_IF_ERROR(open_head(opener));
    if (!head_open_) return false;
    if (is_short()) {
      if (staged().size() < record_bytes()) return false;
      const std::span<std::byte> body = staged().subspan(sizeof(RecordHead));
      begin_ += record_bytes();
      return finish(opener, body.first(head_.header_bytes),
                    body.subspan(head_.header_bytes, head_.payload_bytes), record);
    }
    take_payload_begun();
  }
  if (payload_have_ < payload_.size()) return false;
  in_payload_ = false;
  return finish(opener, std::span(header_).first(head_.header_bytes), payload_, record);
}

// Nothing of a head is used before its seal is good, and that covers the caller's header.
Status RecordReader::open_head(Opener& opener) {
  if (staged().size() < sizeof head_) return {};
  std::memcpy(static_cast<void*>(&head_), staged().data(), sizeof head_);
  CGX_RETURN_IF_ERROR(check_record(head_));
  if (staged().size() < sizeof head_ + head_.header_bytes) return {};
  if (!opener.open_head(head_, staged().subspan(sizeof head_, head_.header_bytes))) {
    return {StatusCode::kCORRUPT, "the seal of a record's head is broken"};
  }
  head_open_ = true;
  return {};
}

// A long record's header and what has come of its payload leave the staging room.
void RecordReader::take_payload_begun() {
  make_payload_room();
  const std::span<std::byte> body = staged().subspan(sizeof head_);
  std::copy_n(body.begin(), head_.header_bytes, header_.begin());
  const std::span<std::byte> begun = body.subspan(head_.header_bytes);
  std::copy(begun.begin(), begun.end(), payload_.begin());
  payload_have_ = begun.size();
  begin_ = end_ = 0;
  in_payload_ = true;
}

void RecordReader::make_payload_room() {
  const size_t bytes = head_.payload_bytes;
  if (bytes > usual_bytes_) {
    long_.resize(bytes);
    payload_ = long_;
    return;
  }
  if (!usual_) usual_ = std::make_unique_for_overwrite<Line[]>(usual_bytes_ / sizeof(Line) + 1);
  payload_ = {usual_[0].bytes, bytes};
}

Result<bool> RecordReader::finish(Opener& opener, std::span<std::byte> header,
                                  std::span<std::byte> payload, Record& record) {
  head_open_ = false;
  if (!opener.open_body(head_, header, payload)) {
    return Status(StatusCode::kCORRUPT, "the seal of a record's payload is broken");
  }
  record = {head_, {header, payload}};
  return true;
}

}  // namespace cgx::transport
