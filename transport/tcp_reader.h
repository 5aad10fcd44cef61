// Cuts what a connection receives into records and opens their seals. Internal to transport/tcp*.
//
// Thread rule: as the connection that owns it.
// Invariants: no length is used before its seal has been opened; a short record is used where the
// socket put it, the payload of a long one is received to where it is used (but for what came
// together with its head, kStagedBytes at most); after an error it is not asked again.
#pragma once

#include <sys/uio.h>

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "transport/tcp_record.h"
#include "transport/tcp_seal.h"

namespace cgx::transport {

class RecordReader {
 public:
  struct Record {
    RecordHead head;
    Frame frame;
  };
  struct Room {
    std::array<iovec, 2> parts{};
    int count = 0;
    size_t bytes = 0;
  };

  explicit RecordReader(uint32_t payload_bytes) : usual_bytes_(payload_bytes) {}

  // Where the next bytes belong. REQUIRES: next() has answered false.
  Room room();
  void filled(size_t bytes);
  // False: more bytes are needed. True: a record, which lives until the next call.
  Result<bool> next(Opener& opener, Record& record);
  bool midway() const { return head_open_; }  // in a record that is not whole yet

 private:
  static constexpr size_t kStagedBytes = 4096;
  // Checksums take a fifth longer over bytes that lie across the lines of the cache.
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  std::span<std::byte> staged() { return std::span(staged_).subspan(begin_, end_ - begin_); }
  bool is_short() const { return record_bytes() <= kStagedBytes; }
  size_t record_bytes() const {
    return sizeof(RecordHead) + head_.header_bytes + head_.payload_bytes;
  }
  Status open_head(Opener& opener);
  void take_payload_begun();
  void make_payload_room();
  Result<bool> finish(Opener& opener, std::span<std::byte> header, std::span<std::byte> payload,
                      Record& record);

  const size_t usual_bytes_;
  alignas(64) std::array<std::byte, kStagedBytes> staged_;
  size_t begin_ = 0, end_ = 0;
  RecordHead head_;
  bool head_open_ = false;   // of the record at begin_, or of the long one under way
  bool in_payload_ = false;  // of a long record
  size_t payload_have_ = 0;
  std::array<std::byte, kTcpHeaderBytesMax> header_;  // of the long record
  std::unique_ptr<Line[]> usual_;
  std::vector<std::byte> long_;  // for a payload beyond usual_bytes_
  std::span<std::byte> payload_;
};

}  // namespace cgx::transport
