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
		missing=$(LD_LIBRARY_PATH="$new/lib:${LD_LIBRARY_PATH:-}" ldd "$program" 2>&1 | sed -n 's/^[[:space:]]*\(.*\) => not found.*/\1/p')
		[ -z "$missing" ] || break
	done
	if [ "$missing" ]; then
		echo "$SPARKRUN_HOST has no $missing: install it there (libnccl2, libopenmpi3; or bring NCCL's sources with --nccl)" >&2
		exit 3
	fi
	mv -T "$new" "$dir" 2>/dev/null || [ -e "$dir/BUILT" ] # another was faster
fi
next=$(mktemp -u "$link.XXXXXX")
ln -s "$(basename "$dir")" "$next"
mv -T "$next" "$link"
for old in "$link"-*; do
	case $old in
	"$dir" | "$dir".*) ;;
	*) rm -rf "$old" ;;
	esac
done
echo "$SPARKRUN_HOST: $link"
