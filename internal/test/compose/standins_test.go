package compose

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

const standinsFolder = "standins"

// standin is a service of standins/images.yaml.
type standin struct {
	Image string `yaml:"image"`
	Build struct {
		Target string `yaml:"target"`
	} `yaml:"build"`
	Entrypoint []string          `yaml:"entrypoint"`
	Labels     map[string]string `yaml:"labels"`
}

// service is a service of docker-compose.yml, with the parts that its image must serve.
type service struct {
	Image       string            `yaml:"image"`
	Entrypoint  []string          `yaml:"entrypoint"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	User        string            `yaml:"user"`
	Healthcheck struct {
		Test []string `yaml:"test"`
	} `yaml:"healthcheck"`
}

func readServices[S any](path string) (map[string]S, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Services map[string]S `yaml:"services"`
	}
	err = yaml.Unmarshal(content, &file)
	return file.Services, err
}

// buildStandins builds the stand-ins and shows their versions next to the pinned ones.
func (d *deployment) buildStandins(ctx context.Context) error {
	versions, err := d.output(ctx, "docker", "version", "--format", "engine {{.Server.Version}} (API {{.Server.APIVersion}})")
	if err != nil {
		return err
	}
	if err := d.prepareStandins(ctx); err != nil {
		return err
	}
	composeVersion, err := d.compose(ctx, "version")
	if err != nil {
		return err
	}
	d.log("%s, %s", versions, composeVersion)
	file := filepath.Join(d.dir, standinsFolder, "images.yaml")
	if _, err := d.compose(ctx, "--file", file, "build"); err != nil {
		return err
	}
	standins, err := readServices[standin](file)
	if err != nil {
		return err
	}
	var table strings.Builder
	for _, name := range slices.Sorted(maps.Keys(standins)) {
		s, version := standins[name], "files of Debian 12"
		if len(s.Entrypoint) > 0 {
			// mosquitto exits with status 3 after it has printed its version.
			version, err = d.compose(ctx, "--file", file, "run", "--rm", "-T", name)
			if err != nil && name != "mosquitto" {
				return err
			}
		}
		size, err := d.output(ctx, "docker", "image", "inspect", "--format", "{{.Size}}", s.Image)
		if err != nil {
			return err
		}
		fmt.Fprintf(&table, "pinned %s, stand-in: %s, %s bytes; differs: %s\n", s.Image, versionPattern().FindString(version), size, s.Labels["differs"])
	}
	d.log("stand-ins:\n%s", table.String())
	return nil
}

// versionPattern finds the version of a program in what it prints.
func versionPattern() *regexp.Regexp {
	return regexp.MustCompile(`(files of Debian \d+|no Grafana|go1[0-9.]+|\d+\.\d+(\.\d+)?)`)
}

// prepareStandins imports the Debian image of the stand-ins. It then collects the files from which images.yaml builds: the folder standins,
// the Go toolchain of this machine and the modules of go.sum.
func (d *deployment) prepareStandins(ctx context.Context) error {
	plugins := filepath.Join(d.dir, "config", "cli-plugins")
	if err := os.MkdirAll(plugins, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(*composePath, filepath.Join(plugins, "docker-compose")); err != nil {
		return err
	}
	if _, err := d.output(ctx, "docker", "import", *packagesPath, "debian:packages"); err != nil {
		return err
	}
	standins := filepath.Join(d.dir, standinsFolder)
	if err := os.CopyFS(standins, os.DirFS(standinsFolder)); err != nil {
		return err
	}
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	if _, err := d.output(ctx, "cp", "-rL", strings.TrimSpace(string(goroot)), filepath.Join(standins, "go")); err != nil {
		return err
	}
	return d.downloadModules(ctx, filepath.Join(standins, "modules"))
}

// downloadModules copies the modules of the dispatcher from the module cache of this machine into the folder target,
// with the layout of a Go module proxy.
func (d *deployment) downloadModules(ctx context.Context, target string) error {
	local, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE").Output()
	if err != nil {
		return err
	}
	cache := filepath.Join(d.dir, "modules")
	download := exec.CommandContext(ctx, "go", "mod", "download")
	download.Dir = d.project
	download.Env = append(os.Environ(), "GOMODCACHE="+cache, "GOFLAGS=-modcacherw",
		"GOPROXY=file://"+filepath.Join(strings.TrimSpace(string(local)), "cache", "download"))
	if out, err := download.CombinedOutput(); err != nil {
		return fmt.Errorf("go mod download: %w: %s", err, out)
	}
	return os.Rename(filepath.Join(cache, "cache", "download"), target)
}

// TestEachPartHasAStandin compares docker-compose.yml and the Dockerfile with the stand-ins, without an engine: each
// image has a stand-in of its name and tag, and the stand-in has the programs and reads the variables.
func TestEachPartHasAStandin(t *testing.T) {
	t.Parallel()
	services, err := readServices[service](filepath.Join(root, "docker-compose.yml"))
	must.Succeed(t, err)
	standins, err := readServices[standin](filepath.Join(standinsFolder, "images.yaml"))
	must.Succeed(t, err)
	stages := readStages(t)
	used := map[string]bool{}
	for _, image := range baseImages(t) {
		used[image] = true
	}
	for name, s := range services {
		if strings.HasPrefix(s.Image, "dispatcher:") { // TestVariablesAreSettings and TestCommandsExist check these
			continue
		}
		used[s.Image] = true
		for _, standin := range standins {
			if standin.Image == s.Image {
				checkStandin(t, name, s, stages[standin.Build.Target])
			}
		}
	}
	built := map[string]bool{}
	for name, s := range standins {
		built[s.Image] = true
		if stages[s.Build.Target] == "" || s.Labels["differs"] == "" {
			t.Errorf("images.yaml: %s has no stage %q, or does not say how it differs", name, s.Build.Target)
		}
	}
	if !maps.Equal(used, built) {
		t.Errorf("the images are %q, the stand-ins %q", slices.Sorted(maps.Keys(used)), slices.Sorted(maps.Keys(built)))
	}
}

// checkStandin checks that a stage of the stand-ins checks the programs of a service, and that a script reads its variables.
func checkStandin(t *testing.T, name string, s service, stage string) {
	t.Helper()
	words := slices.Concat(s.Entrypoint, s.Command)
	for _, program := range []string{words[0], s.Healthcheck.Test[1]} {
		if !regexp.MustCompile(`command -v ` + regexp.QuoteMeta(program) + `\s`).MatchString(stage) {
			t.Errorf("%s: the stand-in has no check of %s", name, program)
		}
	}
	scripts := ""
	for _, match := range regexp.MustCompile(`COPY .*?(\S+\.sh) `).FindAllStringSubmatch(stage, -1) {
		scripts += readFile(t, filepath.Join(standinsFolder, match[1]))
	}
	for _, volume := range s.Volumes {
		if source, _, _ := strings.Cut(volume, ":"); strings.HasPrefix(source, "./") {
			scripts += readFile(t, filepath.Join(root, source))
		}
	}
	for variable := range s.Environment {
		if !strings.Contains(scripts, variable) {
			t.Errorf("%s: no script of the stand-in reads %s", name, variable)
		}
	}
}

// readStages returns the text of each stage of the stand-ins' Dockerfile.
func readStages(t *testing.T) map[string]string {
	t.Helper()
	stages := map[string]string{}
	for _, text := range strings.Split(readFile(t, filepath.Join(standinsFolder, "Dockerfile")), "\nFROM ")[1:] {
		first, _, _ := strings.Cut(text, "\n")
		_, name, _ := strings.Cut(first, " AS ")
		stages[name] = text
	}
	return stages
}

// baseImages returns the images from which the Dockerfile builds.
func baseImages(t *testing.T) (images []string) {
	t.Helper()
	for _, match := range regexp.MustCompile(`(?m)^FROM (?:--platform=\S+ )?(\S+)`).FindAllStringSubmatch(readFile(t, filepath.Join(root, "Dockerfile")), -1) {
		images = append(images, match[1])
	}
	return images
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must.Succeed(t, err)
	return string(content)
}
