// UCX's TCP sockets, found among this process's descriptors by their addresses, to do what UCX has
// no call for. Internal to transport/ucx*.
//
// Thread rule: as the transport that owns them. Only opening and cutting links pays for this.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "proto/wire/status.h"
#include "transport/address_filter.h"
#include "transport/tcp_sockets.h"

namespace cgx::transport {

using SocketAddresses = std::vector<std::string>;  // "10.0.0.3 4711"

// Listening TCP sockets of this process, by descriptor. Take one before and one after UCX opens
// its own; the difference is UCX's.
std::set<int> listening_sockets();
SocketAddresses addresses_of(const std::set<int>& sockets);
bool is_listening(int socket);  // false, too: the descriptor is closed, or is another's

// Sets the options of the sockets at the `own` addresses (listeners, and what they accepted; later
// ones inherit) and of those connected to a `remote` address.
Status set_socket_options(const SocketOptions& options, const SocketAddresses& own,
                          const SocketAddresses& remote);

// No address outside the ranges reaches these listeners any more; who came before is cut off.
Status admit_only(const std::set<int>& listeners, std::span<const AddressRange> ranges);

// Shuts down the connections to a `remote` address and those accepted at the `own` ones from
// `remote_host` (empty: none). UCX then finds them broken, its one sound way to drop them.
void cut_connections(const SocketAddresses& own, const SocketAddresses& remote,
                     const std::string& remote_host);

std::string host_of(const std::string& address);

}  // namespace cgx::transport
