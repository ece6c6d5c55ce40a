package topology

import (
	"encoding/json"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
)

func readYAML[T any](t *testing.T, file string) (content T) {
	t.Helper()
	if err := yaml.Unmarshal(readRepoFile(t, file), &content); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return content
}

// TestPrometheusScrapesTheReplicas checks the configuration of Prometheus: it scrapes the replicas at their ports,
// under the job name that the alerts use.
func TestPrometheusScrapesTheReplicas(t *testing.T) {
	t.Parallel()
	type config struct {
		RuleFiles []string `yaml:"rule_files"`
		Scrapes   []struct {
			Job     string `yaml:"job_name"`
			Targets []struct {
				Targets []string `yaml:"targets"`
			} `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}
	c, compose := readYAML[config](t, "deploy/prometheus/prometheus.yml"), defaultComposition(t)
	var want []string
	for name, s := range compose.Services {
		if strings.HasPrefix(name, "dispatcher-") {
			want = append(want, name+":8080")
			if !slices.ContainsFunc(s.Networks, func(n string) bool { return slices.Contains(compose.Services["prometheus"].Networks, n) }) {
				t.Errorf("prometheus does not reach %s", name)
			}
		}
	}
	slices.Sort(want)
	if len(c.Scrapes) != 1 || c.Scrapes[0].Job != "dispatcher" || len(c.Scrapes[0].Targets) != 1 || !slices.Equal(c.Scrapes[0].Targets[0].Targets, want) {
		t.Errorf("%+v, want %q scraped as job dispatcher", c.Scrapes, want)
	}
	mounts := compose.Services["prometheus"].mounts()
	for _, file := range c.RuleFiles {
		if mounts[file] == "" {
			t.Errorf("%s is not mounted", file)
		}
	}
}

// TestBoardIsProvisioned checks the files of Grafana: Grafana finds the board, and the board finds its data source.
func TestBoardIsProvisioned(t *testing.T) {
	t.Parallel()
	sources := readYAML[struct {
		Datasources []struct {
			UID string `yaml:"uid"`
			URL string `yaml:"url"`
		} `yaml:"datasources"`
	}](t, "deploy/grafana/datasource.yaml").Datasources
	providers := readYAML[struct {
		Providers []struct {
			Options struct {
				Path string `yaml:"path"`
			} `yaml:"options"`
		} `yaml:"providers"`
	}](t, "deploy/grafana/provider.yaml").Providers
	if len(sources) != 1 || len(providers) != 1 || sources[0].URL != "http://prometheus:9090" {
		t.Fatalf("%+v, %+v", sources, providers)
	}
	grafana := defaultComposition(t).Services["grafana"]
	boards := 0
	for target, file := range grafana.mounts() {
		if path.Ext(target) == ".json" {
			boards++
			if path.Dir(target) != providers[0].Options.Path {
				t.Errorf("%s is not in %s", target, providers[0].Options.Path)
			}
			for _, uid := range dataSourceIDs(t, file) {
				if uid != sources[0].UID {
					t.Errorf("%s names a source %q", file, uid)
				}
			}
		}
	}
	if home := grafana.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]; boards != 1 || grafana.mounts()[home] == "" {
		t.Errorf("%d boards; the first page is %q", boards, home)
	}
}

// dataSourceIDs returns the uids of all data sources that a Grafana board uses.
func dataSourceIDs(t *testing.T, file string) (uids []string) {
	t.Helper()
	var board any
	if err := json.Unmarshal(readRepoFile(t, strings.TrimPrefix(file, root)), &board); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	var walk func(node any)
	walk = func(node any) {
		switch n := node.(type) {
		case map[string]any:
			if source, ok := n["datasource"].(map[string]any); ok {
				uid, _ := source["uid"].(string)
				uids = append(uids, uid)
			}
			for _, child := range n {
				walk(child)
			}
		case []any:
			for _, child := range n {
				walk(child)
			}
		}
	}
	walk(board)
	if len(uids) == 0 {
		t.Fatalf("%s names no source", file)
	}
	return uids
}

// TestPrometheusTakesItsFiles checks the files of Prometheus with promtool, and also the alerts for invented
// fleets. A test of internal/app checks the expressions of the alerts without promtool.
func TestPrometheusTakesItsFiles(t *testing.T) {
	t.Parallel()
	promtool := servers.RequireProgram(t, "promtool")
	folder, err := filepath.Abs(filepath.Join(root, "deploy/prometheus"))
	must.Succeed(t, err)
	for _, words := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}, {"check", "config", "--syntax-only", "prometheus.yml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, words...)
		cmd.Dir = folder
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", words, err, out)
		}
	}
}
