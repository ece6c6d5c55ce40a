package release

import (
	"encoding/base64"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

const root = "../../../"

// These flags are set by `make release-check` and `make release-test`.
var (
	whole  = flag.Bool("whole", false, "build releases, and install them")                                                           //nolint:gochecknoglobals // a flag of the test
	before = flag.String("before", "", "the commit from which the packages are upgraded; default: the last one with other packages") //nolint:gochecknoglobals // a flag of the test
)

// requireFullRun skips a test that takes minutes, unless -whole is set. These tests need root.
func requireFullRun(t *testing.T) {
	t.Helper()
	if !*whole {
		t.Skip("takes minutes: make release-test, make release-check")
	}
	if os.Getuid() != 0 {
		t.Fatal("needs root")
	}
}

// packaging is the configuration of nfpm.
type packaging struct {
	Contents []content
	Scripts  map[string]string
}

type content struct {
	Source      string `yaml:"src"`
	Destination string `yaml:"dst"`
	Type        string
	Info        struct{ Mode fs.FileMode } `yaml:"file_info"`
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	must.Succeed(t, err)
	return string(text)
}

func readPackaging(t *testing.T) (p packaging) {
	t.Helper()
	if err := yaml.Unmarshal([]byte(readFile(t, "release/nfpm.yaml")), &p); err != nil || len(p.Contents) == 0 || len(p.Scripts) == 0 {
		t.Fatalf("release/nfpm.yaml: %v", err)
	}
	return p
}

// source returns the content that a package installs as destination.
func (p packaging) source(t *testing.T, destination string) content {
	t.Helper()
	i := slices.IndexFunc(p.Contents, func(c content) bool { return c.Destination == destination })
	if i < 0 {
		t.Fatalf("no package contains %s", destination)
	}
	return p.Contents[i]
}

// unitValues returns the values of a directive of the systemd unit, in order.
func unitValues(t *testing.T, directive string) (values []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`(?m)^`+directive+`=(.*)$`).FindAllStringSubmatch(readFile(t, "deploy/systemd/dispatcher.service"), -1) {
		values = append(values, match[1])
	}
	return values
}

// TestPackagesContainFilesThatExist checks each path in release/nfpm.yaml. Either the path is in the sources, and
// scripts/release copies its folder, or scripts/release generates the file.
func TestPackagesContainFilesThatExist(t *testing.T) {
	t.Parallel()
	p, script := readPackaging(t), readFile(t, "scripts/release")
	archived := regexp.MustCompile(`archive HEAD (.*) \|`).FindStringSubmatch(script)
	if archived == nil {
		t.Fatal("scripts/release copies no files of the commit")
	}
	sources := make([]string, 0, len(p.Contents)+len(p.Scripts))
	for _, c := range p.Contents {
		if c.Type != "dir" {
			sources = append(sources, c.Source)
		}
	}
	for _, name := range p.Scripts {
		sources = append(sources, name)
	}
	for _, source := range sources {
		if generated, ok := strings.CutPrefix(source, "generated/"); ok {
			if !strings.Contains(script, strings.TrimPrefix(generated, "completions/")) {
				t.Errorf("scripts/release does not generate %s", source)
			}
			continue
		}
		if _, err := os.Stat(filepath.Join(root, source)); err != nil {
			t.Error(err)
		}
		if folder, _, _ := strings.Cut(source, "/"); !slices.Contains(strings.Fields(archived[1]), folder) {
			t.Errorf("scripts/release does not copy %s", folder)
		}
	}
}

// TestPackageFitsTheUnit checks that the packages install what the unit needs: the program, the user, the
// configuration file and the folder of the secrets.
func TestPackageFitsTheUnit(t *testing.T) {
	t.Parallel()
	p := readPackaging(t)
	p.source(t, "/usr/lib/systemd/system/dispatcher.service")
	if command := strings.Join(unitValues(t, "ExecStart"), " "); command != "dispatcher serve" {
		t.Errorf("ExecStart=%s: the program must be found in /usr/local/bin and in /usr/bin", command)
	}
	if mode := p.source(t, "/usr/bin/dispatcher").Info.Mode; mode != 0o755 {
		t.Errorf("the program has the mode %o", mode)
	}
	for _, file := range unitValues(t, "EnvironmentFile") {
		if c := p.source(t, file); c.Source != "deploy/systemd/dispatcher.env" || c.Type != "config|noreplace" {
			t.Errorf("%s: %+v: an upgrade must keep it", file, c)
		}
	}
	install := readFile(t, p.Scripts["postinstall"])
	for _, user := range unitValues(t, "User") {
		if !regexp.MustCompile(`useradd --system .*\b` + user + `\n`).MatchString(install) {
			t.Errorf("no user %s is created", user)
		}
	}
	if names := len(unitValues(t, "User")) * len(unitValues(t, "EnvironmentFile")); names != 1 {
		t.Errorf("the unit must name one user and one file: %d", names)
	}
}

// TestMissingSecretsAreNamed checks that the unit has an empty default for each of its secrets, so that the dispatcher names a missing
// secret. It also checks that the package asks for each of them.
func TestMissingSecretsAreNamed(t *testing.T) {
	t.Parallel()
	p := readPackaging(t)
	asked := regexp.MustCompile(`for secret in (.*); do`).FindStringSubmatch(readFile(t, p.Scripts["postinstall"]))
	if asked == nil {
		t.Fatal("the package asks for no secret")
	}
	defaults := unitValues(t, "SetCredential")
	names := make([]string, 0, len(defaults))
	for _, credential := range unitValues(t, "LoadCredential") {
		name, file, _ := strings.Cut(credential, ":")
		names = append(names, name)
		if !slices.Contains(defaults, name+`:\n`) {
			t.Errorf("no SetCredential=%s:\\n", name)
		}
		if c := p.source(t, filepath.Dir(file)); c.Type != "dir" || c.Info.Mode != 0o700 {
			t.Errorf("%s: %+v: only root may read the secrets", filepath.Dir(file), c)
		}
	}
	if !slices.Equal(names, strings.Fields(asked[1])) || len(names) != len(defaults) {
		t.Errorf("the unit has the secrets %q and the defaults %q, the package asks for %q", names, defaults, asked[1])
	}
}

// TestReleaseKeyIsPublished checks that SECURITY.md has a public key of minisign, which has 42 bytes.
func TestReleaseKeyIsPublished(t *testing.T) {
	t.Parallel()
	key, err := base64.StdEncoding.DecodeString(regexp.MustCompile(`\bRW[A-Za-z0-9+/]{54}`).FindString(readFile(t, "SECURITY.md")))
	if err != nil || len(key) != 42 || string(key[:2]) != "Ed" {
		t.Errorf("SECURITY.md has no key: %d bytes, %v", len(key), err)
	}
}
