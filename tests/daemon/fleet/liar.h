// Serves what a test lets another machine's daemon answer.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace cgx::daemon {

class Liar {
 public:
  explicit Liar(grpc::Service& service) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
  }
  uint16_t port() const { return static_cast<uint16_t>(port_); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace cgx::daemon
