#include "daemon/transports.h"

#include <gtest/gtest.h>

#include "config/config.h"

namespace cgx::daemon {
namespace {

std::string chosen(const std::string& transport) {
  v1::Config config;
  const Status loaded =
      config::load_text("transport: " + transport, "c.yaml", config::Checks{}, config);
  EXPECT_TRUE(loaded.ok()) << loaded.to_string();
  config::fill_defaults(config);
  const Result<TransportChoice> choice = choose_transport(config);
  return choice.ok() ? choice->name : choice.status().to_string();
}

TEST(ChooseTransport, AutoIsTcpUnlessRdmaIsConfigured) {
  EXPECT_EQ(chosen("{}"), "tcp");
  EXPECT_EQ(chosen("{name: auto}"), "tcp");
  EXPECT_EQ(chosen("{ucx_transports: [tcp]}"), "tcp");
  EXPECT_EQ(chosen("{ucx_transports: [rc]}"), "ucx");
  EXPECT_EQ(chosen("{ucx_transports: [tcp, rc], devices: [mlx5_0]}"), "ucx");
}

TEST(ChooseTransport, WhatTheOperatorNamesIsTaken) {
  EXPECT_EQ(chosen("{name: ucx}"), "ucx");
  EXPECT_EQ(chosen("{name: tcp, ucx_transports: [rc]}"), "tcp");
  EXPECT_NE(chosen("{name: pigeons}").find("auto, ucx, tcp"), std::string::npos);
}

}  // namespace
}  // namespace cgx::daemon
