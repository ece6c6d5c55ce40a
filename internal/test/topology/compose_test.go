package topology

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// root is the path of the repository.
const root = "../../.."

// composition is the content of docker-compose.yml, with the keys that the tests know. An unknown key is an error,
// so that the tests ignore no key.
type composition struct {
	Name     string             `yaml:"name"`
	Services map[string]service `yaml:"services"`
	Networks map[string]struct {
		Internal bool `yaml:"internal"`
	} `yaml:"networks"`
	Volumes map[string]struct{} `yaml:"volumes"`
	Parts   map[string]any      `yaml:",inline"` // extension keys x-...
}

type service struct {
	Image string `yaml:"image"`
	Build struct {
		Context string            `yaml:"context"`
		Args    map[string]string `yaml:"args"`
	} `yaml:"build"`
	User        string            `yaml:"user"`
	Entrypoint  []string          `yaml:"entrypoint"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Ports       []string          `yaml:"ports"`
	Volumes     []string          `yaml:"volumes"`
	Networks    []string          `yaml:"networks"`
	DependsOn   map[string]struct {
		Condition string `yaml:"condition"`
	} `yaml:"depends_on"`
	Healthcheck struct {
		Test        []string `yaml:"test"`
		Disable     bool     `yaml:"disable"`
		Interval    string   `yaml:"interval"`
		Timeout     string   `yaml:"timeout"`
		Retries     int      `yaml:"retries"`
		StartPeriod string   `yaml:"start_period"`
	} `yaml:"healthcheck"`
	Profiles        []string `yaml:"profiles"`
	Restart         string   `yaml:"restart"`
	ReadOnly        bool     `yaml:"read_only"`
	CapDrop         []string `yaml:"cap_drop"`
	SecurityOpt     []string `yaml:"security_opt"`
	PidsLimit       int      `yaml:"pids_limit"`
	MemLimit        string   `yaml:"mem_limit"`
	Tmpfs           []string `yaml:"tmpfs"`
	ShmSize         string   `yaml:"shm_size"`
	StopGracePeriod string   `yaml:"stop_grace_period"`
	Logging         struct {
		Driver  string            `yaml:"driver"`
		Options map[string]string `yaml:"options"`
	} `yaml:"logging"`
}

// mounts returns the files of the repository that the service mounts, by the path at which the service sees them.
func (s service) mounts() map[string]string {
	files := make(map[string]string)
	for _, volume := range s.Volumes {
		source, target, _ := strings.Cut(volume, ":")
		if strings.HasPrefix(source, "./") {
			files[strings.TrimSuffix(target, ":ro")] = filepath.Join(root, source)
		}
	}
	return files
}

// loadComposition reads docker-compose.yml as compose does. lookup returns the value of a variable. A variable
// without a value has its default.
func loadComposition(t *testing.T, lookup func(string) string) composition {
	t.Helper()
	var tree any
	must.Succeed(t, yaml.Unmarshal(readRepoFile(t, "docker-compose.yml"), &tree))
	resolved, err := yaml.Marshal(interpolateAll(t, tree, lookup))
	must.Succeed(t, err)
	var c composition
	decoder := yaml.NewDecoder(strings.NewReader(string(resolved)))
	decoder.KnownFields(true)
	if err := decoder.Decode(&c); err != nil {
		t.Fatalf("docker-compose.yml: %v", err)
	}
	return c
}

func interpolateAll(t *testing.T, node any, lookup func(string) string) any {
	t.Helper()
	switch n := node.(type) {
	case map[string]any:
		for key, value := range n {
			n[key] = interpolateAll(t, value, lookup)
		}
	case []any:
		for i, value := range n {
			n[i] = interpolateAll(t, value, lookup)
		}
	case string:
		text, err := interpolate(n, lookup)
		if err != nil {
			t.Fatalf("docker-compose.yml: %v", err)
		}
		return text
	}
	return node
}

// interpolate replaces ${NAME}, ${NAME:-default} and ${NAME:?message} in text. lookup returns the values of the variables.
func interpolate(text string, lookup func(string) string) (string, error) {
	var missing error
	resolved := variablePattern().ReplaceAllStringFunc(text, func(reference string) string {
		part := variablePattern().FindStringSubmatch(reference)
		value := lookup(part[1])
		switch {
		case value != "":
		case part[2] == ":-":
			value = part[3]
		case part[2] == ":?":
			missing = fmt.Errorf("%s is needed: %s", part[1], part[3])
		}
		return value
	})
	return resolved, missing
}

func variablePattern() *regexp.Regexp {
	return regexp.MustCompile(`\$\{([A-Z0-9_]+)(?:(:[-?])([^}]*))?\}`)
}

// parseDotenv parses a file of lines NAME=value. A variable in a commented-out line has an empty value.
func parseDotenv(content []byte) map[string]string {
	values := make(map[string]string)
	for line := range strings.Lines(string(content)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			if optional, off := strings.CutPrefix(name, "#"); off {
				name, value = optional, ""
			}
			if regexp.MustCompile(`^[A-Z][A-Z0-9_]*$`).MatchString(name) {
				values[name] = value
			}
		}
	}
	return values
}

func readRepoFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	must.Succeed(t, err)
	return content
}
