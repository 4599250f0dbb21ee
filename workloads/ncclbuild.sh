# Builds nccl-tests with MPI, and NCCL where its sources came along, of nccl-tests/ and
# nccl/ in this folder, for ARCH (121; empty: this machine's GPU) by the MPI of MPIHOME
# (empty: mpicc's). A tar of the programs goes to standard output, all else to standard
# error. Whatever is missing is told before anything is built. Arguments: ARCH MPIHOME.
set -eu
arch=$1 mpihome=$2
exec 3>&1 1>&2
lacks=
lack() {
	lacks="$lacks
  $1"
}

for tool in make tar; do
	command -v $tool >/dev/null || lack "$tool: apt-get install $tool"
done
command -v c++ >/dev/null || lack "c++: apt-get install g++"

nvcc=
for dir in "${CUDA_HOME:-}/bin" $(echo "$PATH" | tr : ' ') /usr/local/cuda/bin; do
	[ -x "$dir/nvcc" ] && nvcc=$dir/nvcc && break
done
if [ "$nvcc" ]; then
	nvcc=$(readlink -f "$nvcc")
	cuda=$(dirname "$(dirname "$nvcc")")
else
	lack "nvcc: install the CUDA toolkit (apt-get install cuda-toolkit), or set CUDA_HOME where you type this"
fi

if [ -z "$arch" ]; then
	arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d . || true)
	case $arch in
	'' | *[!0-9]*) arch=121 ;; # a GB10's
	esac
fi
archs=
[ -z "$nvcc" ] || archs=$("$nvcc" --list-gpu-arch 2>/dev/null || true)
case $(echo "$archs" | tr '\n' ' ') in
' ' | *"compute_$arch "*) ;;
*) lack "an nvcc that builds for sm_$arch, which $nvcc does not (a GB10, sm_121, needs CUDA 12.9 or later)" ;;
esac

# Where nccl-tests' Makefile wants include/ and lib/ of one folder, distributions have them
# apart; the wrapper of the compiler knows where.
if [ -x "$mpihome/bin/mpicc" ]; then
	mpicc=$mpihome/bin/mpicc
else
	mpicc=$(command -v mpicc || true)
	[ -z "$mpihome" ] || mpicc=
fi
soname=libmpi.so incs="" libs=""
if [ "$mpicc" ]; then
	if incs=$("$mpicc" --showme:incdirs 2>/dev/null); then # Open MPI
		libs=$("$mpicc" --showme:libdirs)
	else # MPICH and its kin
		for word in $("$mpicc" -show 2>/dev/null); do
			case $word in
			-I*) incs="$incs ${word#-I}" ;;
			-L*) libs="$libs ${word#-L}" ;;
			-lmpich) soname=libmpich.so ;;
			esac
		done
	fi
fi
mpi=$PWD/mpi
mkdir -p "$mpi/lib"
for dir in $incs "$mpihome/include" /usr/include; do
	[ -e "$dir/mpi.h" ] && ln -sfn "$dir" "$mpi/include" && break
done
for dir in $libs "$mpihome/lib" /usr/lib; do
	[ -e "$dir/$soname" ] && ln -sfn "$dir/$soname" "$mpi/lib/libmpi.so" && break
done
if [ ! -e "$mpi/include/mpi.h" ] || [ ! -e "$mpi/lib/libmpi.so" ]; then
	lack "mpi.h and libmpi.so: apt-get install libopenmpi-dev, or name the MPI's folder with --mpi-home"
fi

home="" of=""
if [ ! -e nccl/makefiles/version.mk ]; then
	for dir in "${NCCL_HOME:-}" /usr /usr/local "${cuda:-}"; do
		[ "$dir" ] && [ -e "$dir/include/nccl.h" ] && home=$dir && break
	done
	if [ "$home" ]; then
		number() { sed -n "s/^#define NCCL_$1 //p" "$home/include/nccl.h"; }
		of="$(number MAJOR).$(number MINOR).$(number PATCH), this machine's own"
	else
		lack "nccl.h: apt-get install libnccl-dev, or bring NCCL's sources with --nccl"
	fi
fi

if [ "$lacks" ]; then
	echo "sparkrun nccl-test build: on $SPARKRUN_HOST there is no$lacks"
	exit 3
fi

out=$PWD/out
trap 'rm -rf "$out"' EXIT
mkdir -p "$out/dist/lib"
gencode="-gencode=arch=compute_$arch,code=sm_$arch"
jobs=$(nproc)
if [ -z "$home" ]; then
	number() { sed -n "s/^NCCL_$1 *:= *//p" nccl/makefiles/version.mk; }
	of="$(number MAJOR).$(number MINOR).$(number PATCH), built with it"
	make -s -j"$jobs" -C nccl src.build BUILDDIR="$out/nccl" CUDA_HOME="$cuda" NVCC_GENCODE="$gencode"
	home=$out/nccl
	cp -a "$out"/nccl/lib/libnccl.so* "$out/dist/lib/"
fi
make -s -j"$jobs" -C nccl-tests/src build BUILDDIR="$out/tests" MPI=1 MPI_HOME="$mpi" CUDA_HOME="$cuda" NCCL_HOME="$home" NVCC="$nvcc" NVCC_GENCODE="$gencode"
cp "$out"/tests/*_perf "$out/dist/"
version=$(sed -n 's/^#define NCCL_TESTS_VERSION "\(.*\)"/\1/p' nccl-tests/src/*.h nccl-tests/src/*.cu | head -n 1)
{
	echo "nccl-tests: ${version:-of before 2.17, which does not say}"
	echo "nccl: $of"
	echo "mpi: $("$mpicc" --showme:version 2>/dev/null || "$mpicc" -v 2>&1 | head -n 1)"
	echo "cuda: $("$nvcc" --version | sed -n 's/.*release \([0-9.]*\).*/\1/p'), sm_$arch"
	echo "built on: $SPARKRUN_HOST"
} >"$out/dist/BUILT"
cd "$out/dist"
tar -cf - BUILT lib ./*_perf >&3
