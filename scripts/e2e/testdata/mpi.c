/* What an MPI program does to its launcher, by its first argument. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

/* Each rank adds its number to what comes round: the sum of all is known. */
static int ring(void) {
  long sum = 0, want = (long)size * (size - 1) / 2;
  if (size == 1) return 0;
  if (rank == 0) {
    MPI_Send(&sum, 1, MPI_LONG, 1, 7, MPI_COMM_WORLD);
    MPI_Recv(&sum, 1, MPI_LONG, size - 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return sum != want;
  }
  MPI_Recv(&sum, 1, MPI_LONG, rank - 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  sum += rank;
  MPI_Send(&sum, 1, MPI_LONG, (rank + 1) % size, 7, MPI_COMM_WORLD);
  return 0;
}

/* 100,000 doubles, so that it does not go by the short road alone. */
static int allreduce(void) {
  enum { n = 100000 };
  double *in = malloc(n * sizeof *in), *out = malloc(n * sizeof *out);
  int bad = 0;
  for (int i = 0; i < n; i++) in[i] = rank + i;
  MPI_Allreduce(in, out, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < n; i++) bad |= out[i] != (double)size * i + (double)size * (size - 1) / 2;
  return bad;
}

/* Debian's MPICH 4.0.2 over UCX's TCP hangs in MPI_Finalize, under its own mpiexec too, where one
 * rank is in the last barrier, and no longer answers, while another still waits for it. So all
 * answer for a while before any goes there. */
static void settle(void) {
  int flag;
  MPI_Barrier(MPI_COMM_WORLD);
  for (double end = MPI_Wtime() + 0.5; MPI_Wtime() < end; usleep(1000))
    MPI_Iprobe(MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "hello";
  int at = argc > 2 ? atoi(argv[2]) : 0, code = argc > 3 ? atoi(argv[3]) : 0;
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 99;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const char *host = getenv("SPARKRUN_HOST"), *own = getenv("OWN");
  if (!strcmp(what, "all")) {
    int bad = ring() | allreduce();
    char line[256] = "";
    /* Who is where is told by all, and printed by one, as one line each. */
    snprintf(line, sizeof line, "rank %d of %d on %s: %s %s", rank, size, host ? host : "?", bad ? "WRONG" : "right", own ? own : "");
    char *lines = malloc(sizeof line * size);
    MPI_Gather(line, sizeof line, MPI_CHAR, lines, sizeof line, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < size; i++) puts(lines + i * sizeof line);
    settle();
    MPI_Finalize();
    return bad;
  }
  if (!strcmp(what, "stdin")) {
    char line[256] = "nothing";
    if (rank == at && !fgets(line, sizeof line, stdin)) strcpy(line, "end of file");
    if (rank == at) printf("rank %d read %s\n", rank, line);
  }
  if (!strcmp(what, "abort") || !strcmp(what, "exit") || !strcmp(what, "leave")) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == at || at < 0) { /* -1: all at once */
      fprintf(stderr, "rank %d ends\n", rank);
      if (!strcmp(what, "abort")) MPI_Abort(MPI_COMM_WORLD, code);
      if (!strcmp(what, "leave")) _exit(0);
      exit(code);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    pause();
  }
  if (!strcmp(what, "wait")) {
    MPI_Barrier(MPI_COMM_WORLD);
    printf("rank %d waits\n", rank);
    fflush(stdout);
    for (char *go = argv[2]; access(go, F_OK); ) usleep(50000);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  MPI_Finalize();
  return 0;
}
