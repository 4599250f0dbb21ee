package workloads

import _ "embed"

// The programs of `nccl-test build`: jobs of the workload exec, which travel in their
// ranks' command line.
var (
	//go:embed ncclbuild.sh
	ncclBuild string
	//go:embed ncclinstall.sh
	ncclInstall string
)

// Places of a build in the folders that its jobs bring along.
const (
	NCCLTestsSource = "nccl-tests"     // of the first job: the sources,
	NCCLSource      = "nccl"           // and NCCL's, where there are some
	NCCLTestsTar    = "nccl-tests.tar" // of the second one: what the first wrote
	NCCLTestsBuilt  = "BUILT"          // in that: what it is, lines KEY: VALUE
)

// NCCLBuildArgs is the command that builds nccl-tests out of its folder and writes a tar
// to standard output. arch is a GPU architecture such as 121, mpiHome the folder of an
// MPI; empty: those of the machine.
func NCCLBuildArgs(arch, mpiHome string) []string {
	return []string{"sh", "-c", ncclBuild, "nccl-test-build", arch, mpiHome}
}

// NCCLInstallArgs is the command that puts that tar into the folder below its user's
// home; sum names the build.
func NCCLInstallArgs(folder, sum string) []string {
	return []string{"sh", "-c", ncclInstall, "nccl-test-install", folder, sum}
}
