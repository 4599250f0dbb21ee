/* A stand-in for NCCL headers: their version alone. */
#define NCCL_MAJOR 2
#define NCCL_MINOR 30
#define NCCL_PATCH 7
