#include "config/syntax.h"

#include <arpa/inet.h>
#include <re2/re2.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "config/text.h"

namespace cgx::config {
namespace {

constexpr size_t kRegexBytesMax = 512;

Status wrong(const std::string& text, const std::string& want) {
  return invalid_argument("\"" + text + "\" is not " + want);
}

bool all_of(std::string_view text, std::string_view extra) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || extra.find(c) != std::string_view::npos;
  });
}

bool parse_below(std::string_view text, unsigned limit, unsigned& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value <= limit;
}

bool is_ip(int family, const std::string& text) {
  unsigned char address[sizeof(in6_addr)];
  return inet_pton(family, text.c_str(), address) == 1;
}

bool is_host(const std::string& text) {
  return is_ip(AF_INET6, text) || (text.size() <= 255 && all_of(text, ".-_"));
}

Status check_address(const std::string& text) {
  const size_t colon = text.rfind(':');
  unsigned port = 0;
  if (colon == std::string::npos || !parse_below(text.substr(colon + 1), 65535, port)) {
    return wrong(text, "host:port");
  }
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  // An IPv4 address may have brackets, too: who fills in an address need not know its family.
  const bool good = bracketed ? is_ip(AF_INET6, host) || is_ip(AF_INET, host)
                              : host.find(':') == host.npos && is_host(host);
  return good ? Status() : wrong(text, "host:port; an IPv6 address needs brackets: [::1]:7070");
}

Status check_network(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string address = text.substr(0, slash);
  const bool v4 = is_ip(AF_INET, address);
  unsigned bits = 0;
  if (slash == std::string::npos || !(v4 || is_ip(AF_INET6, address)) ||
      !parse_below(text.substr(slash + 1), v4 ? 32 : 128, bits)) {
    return wrong(text, "a network such as 10.0.0.0/8 or fd00::/8");
  }
  return Status();
}

Status check_port_range(const std::string& text) {
  if (text == "0") return Status();
  const size_t dash = text.find('-');
  const std::string end = dash == std::string::npos ? text : text.substr(dash + 1);
  unsigned first = 0, last = 0;
  if (!parse_below(text.substr(0, dash), 65535, first) || !parse_below(end, 65535, last) ||
      first == 0 || first > last) {
    return wrong(text, "a range of ports such as 20000-20100, one port, or 0 for any");
  }
  return Status();
}

Status check_mode(const std::string& text) {
  unsigned mode = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), mode, 8);
  if (error != std::errc() || end != text.data() + text.size() || mode > 0777) {
    return wrong(text, "octal permission bits, 0000 to 0777");
  }
  return Status();
}

Status check_regex(const std::string& text) {
  if (text.size() > kRegexBytesMax) {
    return invalid_argument("a regular expression of " + std::to_string(text.size()) +
                            " characters; at most " + std::to_string(kRegexBytesMax));
  }
  const RE2 compiled(text, RE2::Quiet);
  if (compiled.ok()) return Status();
  return wrong(text, "a regular expression (RE2 syntax: no look-around, no back-references): " +
                         compiled.error());
}

}  // namespace

Status check_syntax(v1::Syntax syntax, const std::string& text, const Checks& checks) {
  switch (syntax) {
    case v1::SYNTAX_PATH:
      return text.front() == '/' ? Status() : wrong(text, "an absolute path");
    case v1::SYNTAX_ADDRESS:
      return check_address(text);
    case v1::SYNTAX_HOST:
      return is_host(text) ? Status() : wrong(text, "an IP address or host name");
    case v1::SYNTAX_NETWORK:
      return check_network(text);
    case v1::SYNTAX_PORT_RANGE:
      return check_port_range(text);
    case v1::SYNTAX_MODE:
      return check_mode(text);
    case v1::SYNTAX_GROUP:
      return all_of(text, "._-$") ? Status() : wrong(text, "a group's name or number");
    case v1::SYNTAX_WORD:
      return all_of(text, "._-") ? Status() : wrong(text, "made of letters, digits, and . _ -");
    case v1::SYNTAX_REGEX:
      return check_regex(text);
    case v1::SYNTAX_CODEC:
      return checks.codec ? checks.codec(text) : Status();
    case v1::SYNTAX_OTHER_CODEC:
      return checks.codec && text != kSameCodec ? checks.codec(text) : Status();
    case v1::SYNTAX_LANE:
      return checks.lane ? checks.lane(text) : Status();
    case v1::SYNTAX_TRANSPORT:
      return checks.transport ? checks.transport(text) : Status();
    case v1::SYNTAX_SHARE:
      return parse_share(text).status();
    case v1::SYNTAX_FACTOR:
      return parse_factor(text).status();
    default:
      return Status();
  }
}

}  // namespace cgx::config
