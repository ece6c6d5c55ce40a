package topology

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// defaultComposition returns the composition of docker-compose.yml, with a value for each variable that has no
// default.
func defaultComposition(t *testing.T) composition {
	t.Helper()
	return loadComposition(t, func(name string) string {
		if parseDotenv(readRepoFile(t, ".env.example"))[name] == "" {
			return "a-value-of-its-own-for-" + strings.ToLower(name)
		}
		return ""
	})
}

// isKnownVariable reports whether the program knows an environment variable: a setting, the variable that names the
// file of a setting, or a variable of the command line.
func isKnownVariable(variable string) bool {
	return variable == "DISPATCHER_URL" || variable == "DISPATCHER_TOKEN" ||
		slices.ContainsFunc(app.Settings(), func(s app.Setting) bool {
			return variable == s.Env() || s.Secret && variable == s.Env()+"_FILE"
		})
}

// TestVariablesAreSettings finds misspelt settings in the files of the deployment. They would keep the dispatcher
// from starting.
func TestVariablesAreSettings(t *testing.T) {
	t.Parallel()
	for name, s := range defaultComposition(t).Services {
		for variable := range s.Environment {
			if strings.HasPrefix(variable, "DISPATCHER_") && !isKnownVariable(variable) {
				t.Errorf("%s: %s is no setting", name, variable)
			}
		}
		if !strings.HasPrefix(name, "dispatcher-") {
			continue
		}
		var environ []string
		for variable, value := range s.Environment {
			environ = append(environ, variable+"="+value)
		}
		config, err := app.Load(nil, environ, nil)
		if err != nil || config.CheckComplete() != nil {
			t.Errorf("%s would not start: %v, %v", name, err, config.CheckComplete())
		}
	}
}

// TestEnvExampleIsComplete checks that .env.example contains all variables of docker-compose.yml, with the same defaults.
func TestEnvExampleIsComplete(t *testing.T) {
	t.Parallel()
	asked, values := map[string]string{}, parseDotenv(readRepoFile(t, ".env.example"))
	for _, match := range variablePattern().FindAllStringSubmatch(string(readRepoFile(t, "docker-compose.yml")), -1) {
		name, kind, word := match[1], match[2], match[3]
		if before, ok := asked[name]; ok && before != kind+word {
			t.Errorf("%s is asked for in two ways: %q and %q", name, before, kind+word)
		}
		asked[name] = kind + word
		value, ok := values[name]
		switch {
		case !ok:
			t.Errorf(".env.example has no %s", name)
		case kind == "":
			t.Errorf("%s has neither a default nor a message", name)
		case kind == ":?" && value != "":
			t.Errorf(".env.example has a value for the secret %s", name)
		case kind == ":-" && value != word:
			t.Errorf("%s is %q in .env.example and %q by default", name, value, word)
		}
	}
	for name := range values {
		if _, ok := asked[name]; !ok {
			t.Errorf("%s is in .env.example, and nobody asks for it", name)
		}
	}
}

func TestMissingVariableIsNamed(t *testing.T) {
	t.Parallel()
	if _, err := interpolate("a${SECRET:?run make env}", func(string) string { return "" }); err == nil || !strings.Contains(err.Error(), "SECRET is needed: run make env") {
		t.Error(err)
	}
	got, err := interpolate("${A:-x}${B:-y}${C}", func(name string) string { return map[string]string{"B": "b"}[name] })
	if got != "xb" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestEnvIsWrittenOnce checks the script scripts/env, which writes the file .env. It sets the variables without
// which compose would fail, to different values each time. Only the owner can read the file, and an existing file
// is never changed.
func TestEnvIsWrittenOnce(t *testing.T) {
	t.Parallel()
	write := func(file string) map[string]string {
		if out, err := exec.CommandContext(t.Context(), filepath.Join(root, "scripts/env"), file).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		content, err := os.ReadFile(file)
		must.Succeed(t, err)
		return parseDotenv(content)
	}
	file := filepath.Join(t.TempDir(), ".env")
	first, second := write(file), write(filepath.Join(t.TempDir(), ".env"))
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v; want it for its owner alone", info.Mode(), err)
	}
	if diff := cmp.Diff(first, write(file)); diff != "" {
		t.Errorf("a file that was there changed: %s", diff)
	}
	seen := map[string]string{}
	for name, value := range parseDotenv(readRepoFile(t, ".env.example")) {
		switch {
		case name == "FLEET_TOKEN" || value != "":
			if first[name] != value {
				t.Errorf("%s=%s, want %q", name, first[name], value)
			}
		case !regexp.MustCompile(`^[0-9a-f]{48}$`).MatchString(first[name]) || first[name] == second[name] || seen[first[name]] != "":
			t.Errorf("%s=%s: not random", name, first[name])
		default:
			seen[first[name]] = name
		}
	}
}

func TestImagesArePinned(t *testing.T) {
	t.Parallel()
	full := regexp.MustCompile(`^([a-z]+/)?[a-z-]+:v?\d+\.\d+(\.\d+)?(-[a-z0-9]+)?$`)
	for name, s := range defaultComposition(t).Services {
		if !full.MatchString(s.Image) && s.Image != "dispatcher:dev" {
			t.Errorf("%s: image %q has no full version", name, s.Image)
		}
	}
	from := readDockerfile(t).arguments("FROM")
	if len(from) != 2 || from[1] != "gcr.io/distroless/static-debian12:nonroot" {
		t.Fatalf("FROM %q", from)
	}
	builder := regexp.MustCompile(`^--platform=\$BUILDPLATFORM golang:(\d+\.\d+)\.\d+-[a-z]+ AS build$`).FindStringSubmatch(from[0])
	module := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(string(readRepoFile(t, "go.mod")))
	if builder == nil || builder[1] != module[1] {
		t.Errorf("the image is built by %q, go.mod says go %s", from[0], module[1])
	}
}

// TestMountsExist checks every file that a service mounts: it exists, and something in the service refers to it.
func TestMountsExist(t *testing.T) {
	t.Parallel()
	c := defaultComposition(t)
	for name, s := range c.Services {
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if _, declared := c.Volumes[source]; !declared && !strings.HasPrefix(source, "./") {
				t.Errorf("%s: %s is neither a volume nor a file", name, source)
			}
			if strings.HasPrefix(source, "./") && !strings.HasSuffix(volume, ":ro") {
				t.Errorf("%s: %s could be written to", name, source)
			}
		}
		for target, file := range s.mounts() {
			info, err := os.Stat(file)
			if err != nil || info.IsDir() {
				t.Errorf("%s: %s is no file: %v", name, file, err)
			}
			if !slices.ContainsFunc(s.referringTexts(t, target), func(text string) bool { return strings.Contains(text, target) }) {
				t.Errorf("%s: nothing names %s", name, target)
			}
		}
	}
}

// referringTexts returns the texts in which a service can refer to its files: its commands and variables, the other
// files that it mounts, and the paths that Grafana reads by itself.
func (s service) referringTexts(t *testing.T, excluded string) []string {
	t.Helper()
	texts := slices.Concat(s.Entrypoint, s.Command, s.Healthcheck.Test, slices.Collect(maps.Values(s.Environment)))
	for target, file := range s.mounts() {
		if target != excluded {
			texts = append(texts, string(readRepoFile(t, strings.TrimPrefix(file, root))))
		}
		if strings.HasPrefix(s.Image, "grafana/") && regexp.MustCompile(`^/etc/grafana/provisioning/(datasources|dashboards)/`).MatchString(target) {
			texts = append(texts, target)
		}
	}
	return texts
}

// TestCommandsExist checks the commands of the services: scripts are mounted, and the dispatcher has its subcommands.
func TestCommandsExist(t *testing.T) {
	t.Parallel()
	image := readDockerfile(t)
	commands := subcommands(t)
	for name, s := range defaultComposition(t).Services {
		if !s.Healthcheck.Disable && (len(s.Healthcheck.Test) < 2 || s.Healthcheck.Test[0] != "CMD") {
			t.Errorf("%s: health check %q", name, s.Healthcheck.Test)
			continue
		}
		words := slices.Concat(s.Entrypoint, s.Command)
		if strings.HasPrefix(s.Image, "dispatcher:") {
			words = slices.Concat(image.commandWords("ENTRYPOINT"), s.Command)
			if len(s.Command) == 0 {
				words = append(words, image.commandWords("CMD")...)
			}
		}
		checks := [][]string{words}
		if !s.Healthcheck.Disable {
			checks = append(checks, s.Healthcheck.Test[1:])
		}
		for _, words := range checks {
			_, mounted := s.mounts()[words[min(1, len(words)-1)]]
			switch words[0] {
			case "sh":
				if !mounted {
					t.Errorf("%s: %q: the script is not mounted", name, words)
				}
			case "/dispatcher":
				if !slices.Contains(commands, words[1]) {
					t.Errorf("%s: the program has no %q", name, words[1])
				}
			default: // part of another image: TestEachPartHasAStandin in internal/test/compose
			}
		}
	}
	if check := image.commandWords("HEALTHCHECK"); len(check) != 2 || check[0] != "/dispatcher" || !slices.Contains(commands, check[1]) {
		t.Errorf("HEALTHCHECK %q", check)
	}
}

// subcommands returns the subcommands in the program's help.
func subcommands(t *testing.T) (names []string) {
	t.Helper()
	help := string(readRepoFile(t, "cmd/dispatcher/testdata/help.txt"))
	for _, match := range regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z]`).FindAllStringSubmatch(help, -1) {
		names = append(names, match[1])
	}
	return names
}

// TestFleetFlagsExist checks that the program has the flags of the fleet.
func TestFleetFlagsExist(t *testing.T) {
	t.Parallel()
	help := string(readRepoFile(t, "cmd/dispatcher/testdata/help-simulate.txt"))
	for _, word := range defaultComposition(t).Services["fleet"].Command[1:] {
		flag, _, _ := strings.Cut(word, "=")
		if !regexp.MustCompile(`\s` + flag + `\s`).MatchString(help) {
			t.Errorf("simulate has no %s", flag)
		}
	}
}

// TestOnlyWhatOthersTalkToIsPublished checks the published ports: only the ports for devices and operators are
// published, by default only on this machine, and a service listens on each of them.
func TestOnlyWhatOthersTalkToIsPublished(t *testing.T) {
	t.Parallel()
	want := map[string][]string{
		"dispatcher-1": {"127.0.0.1:8081:8080"},
		"dispatcher-2": {"127.0.0.1:8082:8080"},
		"mosquitto":    {"127.0.0.1:1883:1883"},
		"prometheus":   {"127.0.0.1:9090:9090"},
		"grafana":      {"127.0.0.1:3000:3000"},
	}
	got := map[string][]string{}
	c := defaultComposition(t)
	for name, s := range c.Services {
		if len(s.Ports) > 0 {
			got[name] = s.Ports
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published (-want +got):\n%s", diff)
	}
	for _, s := range app.Settings() {
		if s.Key == "http_listen" && s.Default != ":8080" {
			t.Errorf("the dispatcher listens on %s", s.Default)
		}
	}
	if exposed := readDockerfile(t).arguments("EXPOSE"); !slices.Equal(exposed, []string{"8080"}) {
		t.Errorf("EXPOSE %q", exposed)
	}
	// The configuration of each server has the port to which the other services connect.
	for port, file := range map[string]string{
		"5432": "deploy/postgres/postgresql.conf", "6379": "deploy/redis/redis.conf",
		"1883": "deploy/mosquitto/dynsec/mosquitto.conf", "1884": "deploy/mosquitto/dynsec/mosquitto.conf",
	} {
		if !regexp.MustCompile(`(?m)^(port|listener|port =) ` + port + `( [\d.]+)?$`).Match(readRepoFile(t, file)) {
			t.Errorf("%s does not listen on %s", file, port)
		}
	}
	for _, name := range []string{"postgres", "redis"} {
		if networks := c.Services[name].Networks; !slices.Equal(networks, []string{"data"}) || !c.Networks["data"].Internal {
			t.Errorf("%s can be reached from outside: %q", name, networks)
		}
	}
}

// TestServicesAreConfined checks that no service runs as root or writes outside a volume.
func TestServicesAreConfined(t *testing.T) {
	t.Parallel()
	for name, s := range defaultComposition(t).Services {
		if !s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || !slices.Equal(s.SecurityOpt, []string{"no-new-privileges:true"}) {
			t.Errorf("%s: read_only %t, cap_drop %q, security_opt %q", name, s.ReadOnly, s.CapDrop, s.SecurityOpt)
		}
		if own := strings.HasPrefix(s.Image, "dispatcher:"); s.User == "" && !own || s.User == "root" {
			t.Errorf("%s runs as root", name)
		}
		if isDispatcher := strings.HasPrefix(name, "dispatcher-"); s.PidsLimit != 512 || isDispatcher && s.MemLimit != "4g" {
			t.Errorf("%s: at most %d processes and %q of memory, unlike in %s", name, s.PidsLimit, s.MemLimit, unitFile)
		}
		if s.Restart == "" || s.Logging.Options["max-size"] == "" {
			t.Errorf("%s: restart %q, logs %v", name, s.Restart, s.Logging.Options)
		}
		for other, condition := range s.DependsOn {
			if condition.Condition != "service_healthy" {
				t.Errorf("%s starts before %s is healthy", name, other)
			}
		}
	}
	if user := readDockerfile(t).arguments("USER"); !slices.Equal(user, []string{"nonroot"}) {
		t.Errorf("USER %q", user)
	}
}

func TestPartsOfTheFileAreKnown(t *testing.T) {
	t.Parallel()
	c := defaultComposition(t)
	want := []string{"dispatcher-1", "dispatcher-2", "fleet", "grafana", "mosquitto", "postgres", "prometheus", "redis"}
	if got := slices.Sorted(maps.Keys(c.Services)); !slices.Equal(got, want) {
		t.Errorf("services %q, want %q", got, want)
	}
	for key := range c.Parts {
		if !strings.HasPrefix(key, "x-") {
			t.Errorf("compose knows no %q", key)
		}
	}
}
