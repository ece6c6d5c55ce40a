package app

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "github.com/lib/pq"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/internal/test/await"
	"github.com/fleetslots/dispatcher/internal/test/must"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// TestTransportsAgree plays every exchange twice, over HTTP and over MQTT. The complete replies must be equal.
func TestTransportsAgree(t *testing.T) {
	t.Parallel()
	s := newProxiedDispatcher(t)
	table := allExchanges()
	for name, body := range reportExamples(t) {
		e, known := table[name]
		if !known {
			t.Errorf("the example %s is not in the table", name)
		}
		e.script = "report " + strings.ReplaceAll(body, "\n", " ")
		table[name] = e
	}
	for n, name := range slices.Sorted(maps.Keys(table)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s.compareTransports(t, n, table[name])
		})
	}
}

//nolint:tparallel // each subtest disconnects a server that the other subtests need
func TestTransportsAgreeInOutages(t *testing.T) {
	t.Parallel()
	s := newProxiedDispatcher(t)
	for n, name := range slices.Sorted(maps.Keys(outageExchanges())) {
		t.Run(name, func(t *testing.T) {
			s.compareTransports(t, n, outageExchanges()[name])
		})
	}
}

// proxiedDispatcher is a dispatcher on real servers. The test can disconnect it from Postgres and from Redis.
type proxiedDispatcher struct {
	*instance
	store           *store.Store
	db              *sql.DB
	broker          string
	postgres, redis *servers.Proxy
}

func newProxiedDispatcher(t *testing.T) *proxiedDispatcher {
	t.Helper()
	server, dsn := sharedPostgres.Server(t), sharedPostgres.NewLedger(t)
	broker := servers.StartMosquitto(t)
	s := &proxiedDispatcher{broker: broker.URL, postgres: servers.NewProxy(t, server.Addr()), redis: servers.NewProxy(t, servers.StartRedis(t).Addr)}
	s.instance, _ = startServing(t, serveConfig(t, strings.ReplaceAll(dsn, server.Addr(), s.postgres.Addr), "redis://"+s.redis.Addr,
		"DISPATCHER_MQTT_URL="+broker.URL, "DISPATCHER_REAP_INTERVAL=1s"))
	waitForBroker(t, s.instance)
	var err error
	if s.store, err = store.OpenPostgres(t.Context(), dsn, store.Options{}); err != nil {
		t.Fatal(err)
	}
	if s.db, err = sql.Open("postgres", dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.store.Close()
		_ = s.db.Close()
	})
	return s
}

func (s *proxiedDispatcher) compareTransports(t *testing.T, n int, e exchange) {
	t.Helper()
	if e.mqtt == "" {
		e.mqtt = e.want
	}
	overHTTP := s.runScript(t, fmt.Sprintf("http-%d", n), e.script, func(device string) reportFunc {
		return func(t *testing.T, body string) devices.Reply {
			t.Helper()
			status, content := s.call(t, http.MethodPost, "/v1/devices/"+device+"/report", s.fleet, body)
			return replyFromHTTP(t, status, content)
		}
	})
	overMQTT := s.runScript(t, fmt.Sprintf("mqtt-%d", n), e.script, func(device string) reportFunc {
		return newMQTTDevice(t, &DevServer{MQTTURL: s.broker}, devices.ID(device)).sendReport
	})
	if got := replySummary(overHTTP.reply); got != e.want {
		t.Errorf("HTTP: %s, want %s: %+v", got, e.want, overHTTP.reply)
	}
	if got := replySummary(overMQTT.reply); got != e.mqtt {
		t.Errorf("MQTT: %s, want %s: %+v", got, e.mqtt, overMQTT.reply)
	}
	http, mqtt := overHTTP.reply.ReportAfterMS, overMQTT.reply.ReportAfterMS
	apart := http > 4*mqtt || mqtt > 4*http && e.want != "full" // in the queue, a device that is reached by push need not report by itself
	if e.mqtt == e.want && (http <= 0 || mqtt <= 0 || apart) {
		t.Errorf("report_after_ms %d over HTTP, %d over MQTT", http, mqtt)
	}
	if diff := cmp.Diff(overHTTP.normalizedReply(t), overMQTT.normalizedReply(t)); e.mqtt == e.want && diff != "" {
		t.Errorf("HTTP answers - MQTT +:\n%s", diff)
	}
}

// reportFunc sends a report of one device over one transport, and returns the reply.
type reportFunc func(t *testing.T, body string) devices.Reply

// scriptRun is one run of an exchange's script over one transport.
type scriptRun struct {
	pool          string
	tasks, tokens ordinals
	grant         devices.Task  // the latest grant
	reply         devices.Reply // the latest reply
}

// ordinals maps each id of a grant to its ordinal number, from 1, so that two runs can be compared.
type ordinals map[int64]int64

func (o ordinals) add(n int64) {
	if _, known := o[n]; !known {
		o[n] = int64(len(o) + 1)
	}
}

// replace replaces an id by its ordinal number. An id that was never granted does not change.
func (o ordinals) replace(n *int64) {
	if ordinal, known := o[*n]; known {
		*n = ordinal
	}
}

func (s *proxiedDispatcher) runScript(t *testing.T, name, script string, connect func(device string) reportFunc) *scriptRun {
	t.Helper()
	defer s.postgres.EndCut()
	defer s.redis.EndCut()
	p := &scriptRun{pool: "pool-" + name, tasks: make(ordinals), tokens: make(ordinals)}
	device, other := "device-"+name, "other-"+name
	report := connect(device)
	lines := strings.Split(strings.TrimSuffix(script, "\n"), "\n")
	for n, line := range lines {
		do, what, _ := strings.Cut(line, " ")
		what = strings.NewReplacer("@device", device, "@other", other, "@pool", p.pool,
			"@task", fmt.Sprint(p.grant.ID), "@token", fmt.Sprint(p.grant.Token)).Replace(what)
		switch do {
		case "pool":
			s.callOperator(t, http.MethodPut, "/v1/pools/"+p.pool, what)
		case "batch":
			s.callOperator(t, http.MethodPost, "/v1/batches", `{"pool":"`+p.pool+`","kind":"k","payload":{"server":"st1"},`+what[1:])
		case "other":
			s.sendReport(t, other, `{"id":"other"}`)
		case "cancel":
			s.callOperator(t, http.MethodPost, fmt.Sprintf("/v1/tasks/%d/cancel", p.grant.ID), "")
		case "block":
			must.Succeed(t, s.store.SetBlocked(t.Context(), "test", device, true, ""))
		case "sql":
			s.execSQL(t, what)
		case "lapsed":
			s.execSQL(t, "UPDATE grants SET lease_until = now() - interval '1 s' WHERE device = '"+device+"'")
			s.execSQL(t, "UPDATE batches SET max_attempts = 1 WHERE pool = '"+p.pool+"'")
			await.True(t, "the lapsed grant is taken back", func() bool {
				return strings.Contains(string(s.callOperator(t, http.MethodGet, fmt.Sprintf("/v1/tasks/%d", p.grant.ID), "")), `"timed_out"`)
			})
		case "without":
			map[string]*servers.Proxy{"postgres": s.postgres, "redis": s.redis}[what].Cut()
		case "report":
			p.recordReply(report(t, what))
			await.True(t, "an answer", func() bool { // a pool may have to be restored first
				done := n == len(lines)-1 || p.reply.Reason != devices.ReasonUnavailable
				if !done {
					p.recordReply(report(t, what))
				}
				return done
			})
		default:
			t.Fatalf("no such step: %s", line)
		}
	}
	return p
}

func (s *proxiedDispatcher) execSQL(t *testing.T, statement string) {
	t.Helper()
	if _, err := s.db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

func (p *scriptRun) recordReply(reply devices.Reply) {
	p.reply = reply
	if reply.Task == nil {
		return
	}
	p.grant = *reply.Task
	p.tasks.add(p.grant.ID)
	p.tokens.add(p.grant.Token)
}

// normalizedReply returns the latest reply without those values that differ from run to run.
func (p *scriptRun) normalizedReply(t *testing.T) devices.Reply {
	t.Helper()
	reply := p.reply
	reply.ReportAfterMS = 0
	rename := func(task, token *int64) {
		p.tasks.replace(task)
		p.tokens.replace(token)
	}
	lease := func(ms *int64) {
		if *ms < 200_000 || *ms > 290_000 { // 300 s minus the margin and the elapsed time
			t.Errorf("lease_ms %d", *ms)
		}
		*ms = 0
	}
	for i := range reply.Acks {
		rename(&reply.Acks[i].Task, &reply.Acks[i].Token)
	}
	for i := range reply.Cancel {
		rename(&reply.Cancel[i].Task, &reply.Cancel[i].Token)
	}
	for i := range reply.Renewed {
		rename(&reply.Renewed[i].Task, &reply.Renewed[i].Token)
		lease(&reply.Renewed[i].LeaseMS)
	}
	if reply.Task != nil {
		task := *reply.Task
		rename(&task.ID, &task.Token)
		lease(&task.LeaseMS)
		task.Pool = strings.Replace(task.Pool, p.pool, "pool", 1)
		reply.Task = &task
	}
	if slices.Contains(errorReasons(), reply.Reason) {
		reply.Re, reply.Detail = "", "" // an HTTP problem does not name the report, and its words may differ
	}
	return reply
}

func errorReasons() []devices.Reason {
	return []devices.Reason{devices.ReasonInvalid, devices.ReasonForbidden, devices.ReasonTooLarge, devices.ReasonBusyServer, devices.ReasonUnavailable}
}

// replyFromHTTP converts an HTTP error into the MQTT reply that has the same meaning, by the table in
// docs/protocol.md.
func replyFromHTTP(t *testing.T, status int, content []byte) devices.Reply {
	t.Helper()
	if status == http.StatusOK {
		return decodeReply(t, content)
	}
	var problem struct {
		Code, Detail  string
		ReportAfterMS int64 `json:"report_after_ms"`
	}
	if err := json.Unmarshal(content, &problem); err != nil || problem.Detail == "" {
		t.Fatalf("%d, and no problem: %s: %v", status, content, err)
	}
	reasons := map[int]devices.Reason{
		400: devices.ReasonInvalid, 413: devices.ReasonTooLarge, 422: devices.ReasonInvalid,
		401: devices.ReasonForbidden, 403: devices.ReasonForbidden, 503: devices.ReasonUnavailable,
	}
	return devices.Reply{Reason: reasons[status], Code: problem.Code, Detail: problem.Detail, ReportAfterMS: problem.ReportAfterMS}
}

// replySummary returns a short text of a reply: the reason with the code, followed by the other content.
func replySummary(r devices.Reply) string {
	with := func(word, code string) string { return strings.TrimSuffix(word+":"+code, ":") }
	words := []string{with(string(r.Reason), r.Code)}
	if r.Task != nil && r.Task.Redelivered > 0 {
		words = append(words, fmt.Sprint("again:", r.Task.Redelivered))
	}
	for _, a := range r.Acks {
		words = append(words, with(string(a.Outcome), a.Code))
	}
	for range r.Renewed {
		words = append(words, "renewed")
	}
	for _, c := range r.Cancel {
		words = append(words, with("cancel", c.Why))
	}
	return strings.Join(words, " ")
}
