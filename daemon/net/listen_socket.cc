#include "daemon/net/listen_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>

#include "proto/wire/run_directory.h"

namespace cgx::daemon {
namespace {

constexpr int kBacklog = 128;
const std::string kFresh = "~";

std::string lock_path(const std::string& path) {
  return path + ".lock";
}

std::string holder_of(int lock) {
  char text[16] = {};
  const ssize_t bytes = ::pread(lock, text, sizeof(text) - 1, 0);
  return bytes > 0 ? std::string("process ") + text : std::string("another process");
}

std::optional<FileId> file_of(int fd) {
  struct stat found;
  if (::fstat(fd, &found) != 0) return std::nullopt;
  return FileId{found.st_dev, found.st_ino};
}

Status write_pid(int lock) {
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(lock, 0) == 0 && ::pwrite(lock, pid.data(), pid.size(), 0) > 0) return {};
  return errno_status(StatusCode::kINTERNAL, "writing the lock file");
}

Result<UniqueFd> take_lock(const std::string& socket_path) {
  const std::string path = lock_path(socket_path);
  for (;;) {
    UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!lock) return errno_status(StatusCode::kPERMISSION_DENIED, "cannot open " + path);
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      return Status(StatusCode::kALREADY_EXISTS,
                    "the socket " + socket_path + " is already served by " + holder_of(lock.get()));
    }
    // Its last holder may have removed it since we opened it: then it is another file.
    if (file_of(lock.get()) != file_at(path)) continue;
    CGX_RETURN_IF_ERROR(write_pid(lock.get()));
    return lock;
  }
}

// Where the socket is bound before it listens.
Result<sockaddr_un> address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t longest = sizeof(address.sun_path) - 1 - kFresh.size();
  if (path.size() > longest) {
    return invalid_argument("the socket path " + path + " has " + std::to_string(path.size()) +
                            " bytes, at most " + std::to_string(longest) + " are possible");
  }
  (path + kFresh).copy(address.sun_path, sizeof(address.sun_path) - 1);
  return address;
}

Status remove_stale(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return {};
  if (!S_ISSOCK(status.st_mode)) return invalid_argument(path + " exists and is not a socket");
  if (::unlink(path.c_str()) == 0) return {};
  return errno_status(StatusCode::kPERMISSION_DENIED, "cannot remove the stale socket " + path);
}

// Bound beside its place and moved there once it listens: whoever sees the path can connect.
Status bind_and_listen(int fd, const sockaddr_un& address, const ListenSocketOptions& options) {
  const std::string& path = options.path;
  const std::string fresh = path + kFresh;
  CGX_RETURN_IF_ERROR(remove_stale(fresh));
  CGX_RETURN_IF_ERROR(remove_stale(path));
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return errno_status(StatusCode::kPERMISSION_DENIED, "cannot bind " + fresh);
  }
  if (::chown(fresh.c_str(), static_cast<uid_t>(-1), options.group) != 0) {
    return errno_status(StatusCode::kPERMISSION_DENIED,
                        "cannot give " + path + " to group " + std::to_string(options.group) +
                            ", of which this process has to be a member (" + options.group_key +
                            "; for a service: SupplementaryGroups=)");
  }
  if (::chmod(fresh.c_str(), options.mode) != 0 || ::listen(fd, kBacklog) != 0 ||
      ::rename(fresh.c_str(), path.c_str()) != 0) {
    return errno_status(StatusCode::kPERMISSION_DENIED, "cannot listen on " + path);
  }
  return {};
}

}  // namespace

std::optional<FileId> file_at(const std::string& path) {
  struct stat found;
  if (::lstat(path.c_str(), &found) != 0) return std::nullopt;
  return FileId{found.st_dev, found.st_ino};
}

Status prepare_directory(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (directory.empty()) return {};
  const mode_t mode = ::geteuid() == 0 ? 0755 : 0700;  // as prepare_run_directory()
  if (::mkdir(directory.c_str(), mode) != 0 && errno != EEXIST) {
    return errno_status(StatusCode::kPERMISSION_DENIED,
                        "cannot make the folder " + directory.string() + " for the socket " + path +
                            " (run_directory says where sockets are)");
  }
  struct stat status;
  if (::lstat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return invalid_argument(directory.string() + " is not a directory");
  }
  const bool ours = status.st_uid == ::geteuid() || status.st_uid == 0;
  const bool closed = !(status.st_mode & S_IWOTH) || (status.st_mode & S_ISVTX);
  if (ours && closed) return {};
  return Status(StatusCode::kPERMISSION_DENIED,
                directory.string() + " belongs to uid " + std::to_string(status.st_uid) +
                    " or is writable by everybody: others could replace the socket in it");
}

void leave_refusal(const std::string& socket, const std::string& why) {
  const std::string path = refusal_path(socket);
  (void)::unlink(path.c_str());
  const UniqueFd file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (file) (void)::fchmod(file.get(), 0644);  // trainers read it, whatever the umask
  const std::string line = why + "\n";
  if (file && ::write(file.get(), line.data(), line.size()) < 0) (void)::unlink(path.c_str());
}

std::string served_by_another(const std::string& socket) {
  const UniqueFd lock(
      ::open(lock_path(socket).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  const bool held = lock && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0;
  const std::string holder = held ? holder_of(lock.get()) : std::string();
  return holder == "process " + std::to_string(::getpid()) ? std::string() : holder;
}

void forget_refusal(const std::string& socket) {
  (void)::unlink(refusal_path(socket).c_str());
}

Result<ListenSocket> ListenSocket::open(const ListenSocketOptions& options) {
  CGX_ASSIGN_OR_RETURN(const sockaddr_un address, address_of(options.path));
  CGX_RETURN_IF_ERROR(prepare_directory(options.path));
  CGX_ASSIGN_OR_RETURN(UniqueFd lock, take_lock(options.path));
  ListenSocket result(options.path, std::move(lock));
  UniqueFd socket(::socket(AF_UNIX, options.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return errno_status(StatusCode::kRESOURCE_EXHAUSTED, "socket");
  CGX_RETURN_IF_ERROR(bind_and_listen(socket.get(), address, options));
  result.bound_ = file_at(options.path);
  result.socket_ = std::move(socket);
  return result;
}

// Where somebody has removed the lock file, another daemon may serve the path by now.
void ListenSocket::close() {
  if (!lock_) return;
  if (file_of(lock_.get()) == file_at(lock_path(path_))) {
    if (bound_ && bound_ == file_at(path_)) ::unlink(path_.c_str());
    ::unlink(lock_path(path_).c_str());
  }
  socket_.reset();
  lock_.reset();
}

}  // namespace cgx::daemon
