# Puts the build that the job has brought (nccl-tests.tar, BUILT) where launch nccl-test
# looks for it: a folder named after its SUM, and a link to it that changes in one step.
# Homes may be shared: all machines do the same at once.
# Arguments: FOLDER below HOME, SUM.
set -eu
link=$HOME/$1 dir=$HOME/$1-$2
if [ ! -e "$dir/BUILT" ]; then
	mkdir -p "$(dirname "$dir")"
	new=$(mktemp -d "$dir.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	chmod 755 "$new"
	tar -C "$new" -xf nccl-tests.tar
	for program in "$new"/*_perf; do
		# ldd fails where the program is no machine's of this kind, and tells of libraries where it is.
		needs=$(LD_LIBRARY_PATH="$new/lib:${LD_LIBRARY_PATH:-}" ldd "$program" 2>&1) || {
			echo "$SPARKRUN_HOST cannot run $(basename "$program"), which was built on another kind of machine: ldd says: $needs" >&2
			exit 3
		}
		missing=$(echo "$needs" | sed -n 's/^[[:space:]]*\(.*\) => not found.*/\1/p')
		if [ "$missing" ]; then
			echo "$SPARKRUN_HOST has no $missing: install it there (libnccl2, libopenmpi3; or bring NCCL's sources with --nccl)" >&2
			exit 3
		fi
	done
	[ ! -e "$dir" ] || [ -e "$dir/BUILT" ] || rm -rf "$dir" # somebody has taken it apart
	mv -T "$new" "$dir" 2>/dev/null || [ -e "$dir/BUILT" ]  # another was faster
fi
touch "$dir"
was=$(readlink "$link" || true)
next=$(mktemp -u "$link.XXXXXX")
ln -s "$(basename "$dir")" "$next"
mv -T "$next" "$link"
# What is old goes, but for the build before this, from which a test may be starting; what is not may
# be another build on its way here.
find "$(dirname "$link")/" -mindepth 1 -maxdepth 1 -type d -name "$(basename "$link")-*" ! -name "$(basename "$dir")" ! -name "${was:-.}" -mmin +60 -exec rm -rf {} + || true
echo "$SPARKRUN_HOST: $link"
