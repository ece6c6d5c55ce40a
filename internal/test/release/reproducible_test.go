package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// TestReleaseIsReproducible builds the release of this commit twice: as root, and as a new user with another folder,
// umask, language, time zone and caches of its own. All files are the same, and each program has the header of its
// platform. The variable PLATFORMS may select some of the platforms.
func TestReleaseIsReproducible(t *testing.T) {
	t.Parallel()
	requireFullRun(t)
	dir, err := os.MkdirTemp("", "release-check-") //nolint:usetesting // another user must be able to read it
	must.Succeed(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	user, home := fmt.Sprintf("release-%d", os.Getpid()), filepath.Join(dir, "folder-of-another-user")
	first, second := filepath.Join(dir, "source"), filepath.Join(home, "source")
	runCommand(t, nil, "chmod", "755", dir)
	runCommand(t, nil, "useradd", "--create-home", "--home-dir", home, "--user-group", user)
	t.Cleanup(func() { _ = exec.Command("userdel", user).Run() })
	for _, source := range []string{first, second} {
		runCommand(t, nil, "git", "clone", "--quiet", "--no-local", root, source)
	}
	runCommand(t, nil, "chown", "-R", user+":", home)
	runCommand(t, nil, filepath.Join(first, "scripts/release"))
	runCommand(t, nil, "runuser", "-u", user, "--", "env", "-i", "HOME="+home, "PATH="+os.Getenv("PATH"), "PLATFORMS="+os.Getenv("PLATFORMS"),
		"GOFLAGS=-modcacherw", "TZ=Asia/Tokyo", "LANG=de_DE.UTF-8", "sh", "-c", "umask 077 && exec "+filepath.Join(second, "scripts/release"))
	sums, err := os.ReadFile(filepath.Join(first, "dist/SHA256SUMS"))
	must.Succeed(t, err)
	again, err := os.ReadFile(filepath.Join(second, "dist/SHA256SUMS"))
	if diff := cmp.Diff(string(sums), string(again)); diff != "" || err != nil {
		t.Errorf("the hashes differ: %v\n%s", err, diff)
	}
	expectHeaders(t, filepath.Join(first, "dist"))
	t.Logf("root and %s built the same files:\n%s", user, sums)
}
