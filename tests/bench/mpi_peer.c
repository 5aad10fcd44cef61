// Open MPI as a benchmark peer: MPI_Allreduce in place, driven by the runner over a Unix socket per
// rank so that ranks which wait for the next round sleep in read() instead of polling in MPI.
#include <mpi.h>

#include "tests/bench/command.h"

struct operation {
  float* data;
  int elements;
};

static void allreduce(void* context) {
  const struct operation* operation = context;
  MPI_Allreduce(MPI_IN_PLACE, operation->data, operation->elements, MPI_FLOAT, MPI_SUM,
                MPI_COMM_WORLD);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: mpi_peer SOCKET BYTES_MAX\n");
    return 2;
  }
  int rank = 0, ranks = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  struct command_channel runner = command_connect(argv[1], rank);
  float* data = malloc((size_t)atoll(argv[2]));
  struct command command;
  while (command_next(&runner, &command)) {
    struct operation operation = {data, (int)(command.bytes / sizeof(float))};
    command_measure(&runner, &command, data, data, rank, ranks, 1.0, allreduce, &operation);
  }
  free(data);
  MPI_Finalize();
  return 0;
}
