/* A stand-in for nccl-tests on machines without a GPU: real MPI, no NCCL. It asks its
 * launcher for all that nccl-tests does (src/common.cu: who is where, by a gather of hosts;
 * barriers; a reduce of what was measured), and then prints the table that nccl-tests 2.19.6
 * printed on two H200, with the bandwidth that $STANDIN_BUS says in place of a measured one. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common.h"

int main(int argc, char **argv) {
  long min = 32 << 20, max = 32 << 20, factor = 2, check = 1;
  int rank, size;
  setvbuf(stdout, NULL, _IOLBF, 0);
  for (int i = 1; i + 1 < argc; i += 2) {
    long v = atol(argv[i + 1]);
    switch (argv[i][1]) {
      case 'b': min = v; break;
      case 'e': max = v; break;
      case 'f': factor = v; break;
      case 'c': check = v; break;
      case 'g': case 'n': case 'w': break;
      default: fprintf(stderr, "no option %s\n", argv[i]); return 1;
    }
  }
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  struct { char host[64]; long pid; } me = {"", getpid()}, *all = calloc(size, sizeof me);
  gethostname(me.host, sizeof me.host - 1);
  MPI_Allgather(&me, sizeof me, MPI_BYTE, all, sizeof me, MPI_BYTE, MPI_COMM_WORLD);
  MPI_Barrier(MPI_COMM_WORLD);
  const char *text = getenv("STANDIN_BUS");
  double bus = text ? atof(text) : 1, sum = 0;
  if (rank == 0) {
    const char *name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    printf("# nccl-tests version %s nccl-headers=23007 nccl-library=23007\n# Collective test starting: %s\n", NCCL_TESTS_VERSION, name);
    printf("# nThread 1 nGpus 1 minBytes %ld maxBytes %ld step: %ld(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: %ld graph: 0 unalign: 0\n#\n# Using devices\n", min, max, factor, check);
    for (int i = 0; i < size; i++)
      printf("#  Rank %2d Group  0 Pid %6ld on %10s device  0 [0000:00:06] no GPU: a stand-in\n", i, all[i].pid, all[i].host);
    printf("#\n#                                                              out-of-place                       in-place          \n"
           "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n"
           "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n");
  }
  int n = 0;
  for (long b = min; b <= max; b *= factor, n++) {
    double alg = bus * size / (size - 1), worst;
    MPI_Allreduce(&bus, &worst, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    if (rank == 0)
      printf("%12ld  %12ld     float    none      -1  %7.2f %7.2f %7.2f       0  %7.2f %7.2f %7.2f       0\n", b, b / 4 / size, b / alg / 1e3, alg, worst, b / alg / 1e3, alg, worst);
    sum += worst;
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0)
    printf("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : %g \n#\n# Collective test concluded: all_gather_perf\n#\n", sum / n);
  MPI_Finalize();
  return 0;
}
