package topology

import (
	"encoding/json"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// image has the instructions of the Dockerfile in their order.
type image []instruction

type instruction struct{ name, rest string }

func readDockerfile(t *testing.T) image {
	t.Helper()
	var i image
	for line := range strings.Lines(string(readRepoFile(t, "Dockerfile"))) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(line, " ")
		i = append(i, instruction{name, rest})
	}
	return i
}

// arguments returns the arguments of all instructions with this name.
func (i image) arguments(name string) (rest []string) {
	for _, one := range i {
		if one.name == name {
			rest = append(rest, one.rest)
		}
	}
	return rest
}

// commandWords returns the words of the last instruction with this name. Its argument must be a JSON list.
func (i image) commandWords(name string) (words []string) {
	found := i.arguments(name)
	if len(found) == 0 {
		return nil
	}
	last := found[len(found)-1]
	_ = json.Unmarshal([]byte(last[max(strings.Index(last, "["), 0):]), &words)
	return words
}

// TestImageIsBuiltAsByMake checks that the image contains the program as `make build` builds it.
func TestImageIsBuiltAsByMake(t *testing.T) {
	t.Parallel()
	for name, command := range map[string]string{"Makefile": "scripts/build bin/dispatcher\n", "Dockerfile": "scripts/build /dispatcher\n"} {
		if text := string(readRepoFile(t, name)); !strings.Contains(text, command) || strings.Contains(text, "./cmd/dispatcher") {
			t.Errorf("%s does not build with %q", name, command)
		}
	}
	arguments := readDockerfile(t).arguments("ARG")
	for _, match := range regexp.MustCompile(`\$\{([A-Z]+):-(\w+)\}`).FindAllStringSubmatch(string(readRepoFile(t, "scripts/build")), -1) {
		if want := match[1] + "=" + match[2]; !slices.Contains(arguments, want) {
			t.Errorf("the Dockerfile has no ARG %s", want)
		}
	}
}

// TestBuildReadsAllThatItNeeds checks that .dockerignore excludes no file that the build of the image needs.
func TestBuildReadsAllThatItNeeds(t *testing.T) {
	t.Parallel()
	ignored := strings.Fields(string(readRepoFile(t, ".dockerignore")))
	if !slices.Contains(ignored, ".env") {
		t.Error("secrets would be copied into the image")
	}
	for _, pattern := range []string{"go.mod", "cmd", "dispatcher", "migrations", "slots"} {
		if slices.Contains(ignored, pattern) {
			t.Errorf("%s is needed", pattern)
		}
	}
	for _, file := range embeddedFiles(t) {
		for _, pattern := range ignored {
			if ok, _ := path.Match(strings.TrimPrefix(pattern, "**/"), path.Base(file)); ok || strings.HasPrefix(file, pattern+"/") {
				t.Errorf("%s is embedded, and ignored by %s", file, pattern)
			}
		}
	}
}

// embeddedFiles returns the files that packages of the program embed.
func embeddedFiles(t *testing.T) (files []string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{range .EmbedFiles}}{{$.ImportPath}}/{{.}}{{"\n"}}{{end}}`, "./...")
	cmd.Dir = root
	out, err := cmd.Output()
	must.Succeed(t, err)
	for file := range strings.Lines(string(out)) {
		files = append(files, strings.TrimPrefix(strings.TrimSpace(file), "github.com/fleetslots/dispatcher/"))
	}
	if len(files) == 0 {
		t.Fatal("no file is embedded: the migrations are")
	}
	return files
}
