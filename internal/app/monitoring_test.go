package app

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"

	"github.com/fleetslots/dispatcher/dispatcher"
	"github.com/fleetslots/dispatcher/internal/test/must"
)

// metricNameSet is a Prometheus registerer that records the names of the registered metrics.
type metricNameSet map[string]bool

func (n metricNameSet) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		c.Describe(descs)
	}()
	for d := range descs {
		n[regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	return nil
}

func (n metricNameSet) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = n.Register(c)
	}
}

func (metricNameSet) Unregister(prometheus.Collector) bool { return false }

// registeredMetrics returns the names of all metrics of a dispatcher. These are the metrics that the package
// dispatcher registers, even if they have no value before their first event, and the metrics that a running
// instance exposes.
func registeredMetrics(t *testing.T) metricNameSet {
	t.Helper()
	all := metricNameSet{}
	dispatcher.New(dispatcher.Config{Registerer: all})
	i, _ := startDev(t, t.TempDir())
	i.callOperator(t, http.MethodPut, "/v1/pools/p", `{"capacity":1}`)
	for line := range strings.Lines(string(i.callOperator(t, http.MethodGet, "/metrics", ""))) {
		if words := strings.Fields(line); words[0] == "#" && words[1] == "TYPE" {
			all[words[2]] = true
		}
	}
	return all
}

// monitoringQueries returns the expressions in the alerts and in the dashboard of Grafana. The key of each expression
// is its place.
func monitoringQueries(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	var alerts struct {
		Groups []struct {
			Name  string `yaml:"name"`
			Rules []struct {
				Alert       string            `yaml:"alert"`
				Expr        string            `yaml:"expr"`
				For         string            `yaml:"for"`
				Labels      map[string]string `yaml:"labels"`
				Annotations map[string]string `yaml:"annotations"`
			} `yaml:"rules"`
		} `yaml:"groups"`
	}
	decoder := yaml.NewDecoder(strings.NewReader(readRepoFile(t, "deploy/prometheus/alerts.yaml")))
	decoder.KnownFields(true)
	must.Succeed(t, decoder.Decode(&alerts))
	for _, g := range alerts.Groups {
		for _, r := range g.Rules {
			if all[r.Alert] != "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" {
				t.Errorf("alert %s comes twice, or has no severity or summary", r.Alert)
			}
			all[r.Alert] = r.Expr
		}
	}
	var board struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Ref  string `json:"refId"`
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	must.Succeed(t, json.Unmarshal([]byte(readRepoFile(t, "deploy/grafana/dispatcher.json")), &board))
	for _, p := range board.Panels {
		for _, target := range p.Targets {
			all[p.Title+" "+target.Ref] = target.Expr
		}
	}
	return all
}

func readRepoFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../..", path))
	must.Succeed(t, err)
	return string(content)
}

// TestQueriesAreOfMetricsThatExist checks the expressions of the alerts and of the dashboard: they are valid PromQL
// and use only metrics that exist. Prometheus itself provides the metric up.
func TestQueriesAreOfMetricsThatExist(t *testing.T) {
	t.Parallel()
	metrics, all := registeredMetrics(t), monitoringQueries(t)
	if len(all) < 30 {
		t.Errorf("%d queries", len(all))
	}
	for source, query := range all {
		expr, err := parser.ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "1m"))
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			if s, ok := node.(*parser.VectorSelector); ok {
				if s.Name != "up" && !metrics[histogramName(metrics, s.Name)] {
					t.Errorf("%s: there is no metric %q", source, s.Name)
				}
			}
			return nil
		})
	}
}

// histogramName returns the name of the histogram to which a series belongs. If the series belongs to no histogram,
// it returns the name of the series.
func histogramName(metrics metricNameSet, series string) string {
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if of, ok := strings.CutSuffix(series, suffix); ok && metrics[of] {
			return of
		}
	}
	return series
}

// TestMetricsAreDocumented checks that docs/protocol.md lists all metrics, and that the documents name no metric
// that does not exist.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	metrics := registeredMetrics(t)
	name := regexp.MustCompile(`\bdispatcher_[a-z_]+\b`) // not a file such as dispatcher_v0.1.0_linux_amd64.deb
	_, table, _ := strings.Cut(readRepoFile(t, "docs/protocol.md"), "\n## Metrics\n")
	listed := name.FindAllString(table, -1)
	for metric := range metrics {
		if strings.HasPrefix(metric, "dispatcher_") && !slices.Contains(listed, metric) {
			t.Errorf("docs/protocol.md does not list %s", metric)
		}
	}
	for _, page := range []string{"docs/protocol.md", "docs/operations.md", "docs/architecture.md"} {
		for _, metric := range name.FindAllString(readRepoFile(t, page), -1) {
			if !metrics[histogramName(metrics, metric)] {
				t.Errorf("%s names %s, which does not exist", page, metric)
			}
		}
	}
	for alert := range monitoringQueries(t) {
		if strings.HasPrefix(alert, "Dispatcher") && !strings.Contains(readRepoFile(t, "docs/operations.md"), "`"+alert+"`") {
			t.Errorf("docs/operations.md does not say what to do about %s", alert)
		}
	}
}
