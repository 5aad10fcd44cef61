// Where a daemon and its clients meet when nobody says otherwise, and when that place can be
// trusted. Part of the contract: the daemon, libcgx and cgxctl must derive the same answer.
#pragma once

#include <cstdint>
#include <string>

#include "proto/wire/status.h"

namespace cgx {

constexpr const char* kSystemRunDirectory = "/run/cgxd";
constexpr const char* kClientSocketName = "cgxd.sock";
constexpr const char* kControlSocketName = "control.sock";

// Of a daemon that trainers reach at `socket`, where nothing else is configured: cgxd.sock ->
// control.sock, x.sock -> x-control.sock.
std::string control_socket_beside(const std::string& socket);

// Beside a socket that nobody serves, why the last daemon that should have did not start; one line.
std::string refusal_path(const std::string& socket);
// Empty: there is none, or what is there is no plain file. Safe to print.
std::string read_refusal(const std::string& socket);

// root: /run/cgxd; others: cgxd in $XDG_RUNTIME_DIR if that is an absolute path, else
// /tmp/cgxd-UID.
std::string default_run_directory(uint32_t uid, const char* xdg_runtime_dir);

// A directory, not a link, owned by root or by `uid`, writable by its owner alone. Anything else in
// /tmp may have been put there by somebody who wants to impersonate the daemon. /run/cgxd may
// belong to the daemon's own user: only root can have given it that.
Status check_run_directory(const std::string& path, uint32_t uid);

}  // namespace cgx
