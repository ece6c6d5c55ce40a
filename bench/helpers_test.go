package bench

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
)

// TestMain runs the tests. If BENCH_HELPER is set, this process does not run tests: it is one of the servers with which
// the dispatcher is compared.
func TestMain(m *testing.M) {
	switch os.Getenv("BENCH_HELPER") {
	case "bare":
		serveHelper(replyNone)
	case "answers":
		serveAnswers()
	case "transport":
		serveTransport()
	case "classic":
		c, err := openClassic(os.Getenv("BENCH_DSN"), os.Getenv("BENCH_REDIS"))
		if err != nil {
			panic(err)
		}
		serveHelper(c.handleReport)
	default:
		m.Run()
	}
}

// deviceReport is the report of a device, and reportReply is the reply. Both have the form of the dispatcher's
// protocol.
type (
	deviceReport struct {
		Results []struct {
			Task, Token int64
			Status      string
		}
		Accept *bool
	}
	reportReply struct {
		Reason        string     `json:"reason"`
		Task          *taskGrant `json:"task,omitempty"`
		ReportAfterMS int64      `json:"report_after_ms"`
	}
	taskGrant struct {
		ID      int64  `json:"id"`
		Token   int64  `json:"token"`
		LeaseMS int64  `json:"lease_ms"`
		Kind    string `json:"kind"`
	}
)

func serveHelper(answer func(ctx context.Context, device string, r deviceReport) (reportReply, error)) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v1/devices/{device}/report", func(w http.ResponseWriter, r *http.Request) {
		var report deviceReport
		err := json.NewDecoder(r.Body).Decode(&report)
		if err == nil {
			var reply reportReply
			if reply, err = answer(r.Context(), r.PathValue("device"), report); err == nil {
				w.Header().Set("Content-Type", "application/json")
				_ = json.NewEncoder(w).Encode(reply)
				return
			}
		}
		http.Error(w, err.Error(), http.StatusInternalServerError)
	})
	panic(http.ListenAndServe(os.Getenv("BENCH_LISTEN"), mux))
}

// replyNone answers every report with the reply that there is no task.
func replyNone(context.Context, string, deviceReport) (reportReply, error) {
	return reportReply{Reason: "none", ReportAfterMS: 30_000}, nil
}

// measureBareHTTP measures HTTP and JSON alone, without a dispatcher: the server answers every report with the
// reply that there is no task.
func measureBareHTTP(s *testbed, size scale) figures {
	s.startHelper("bare")
	l := s.newHTTPLoad(size, numberedNames("d", size.queuedTasks))
	l.wrapsAround = true
	return s.measureCPU(func() figures { return l.run(s, reportIdle) })
}

// classicDispatcher is a simple dispatcher as it is often written. It selects the pending task of the device,
// increments a counter in Redis up to a limit, and updates the task with its result. If it crashes, or if a message
// arrives twice, its counter is wrong.
type classicDispatcher struct {
	selectPending, updateEnded *sql.Stmt
	redis                      *redis.Client
	incrementBelow             *redis.Script // script that increments the counter up to the limit
}

func openClassic(dsn, addr string) (*classicDispatcher, error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	pending, err1 := db.Prepare("SELECT id FROM classic WHERE device = $1 AND state = 'pending' ORDER BY id LIMIT 1")
	done, err2 := db.Prepare("UPDATE classic SET state = $2, ended_at = now() WHERE id = $1")
	upTo := redis.NewScript(`if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(ARGV[1]) then return 0 end redis.call('INCR', KEYS[1]) return 1`)
	return &classicDispatcher{pending, done, redis.NewClient(&redis.Options{Addr: addr}), upTo}, errors.Join(err1, err2)
}

func (c *classicDispatcher) handleReport(ctx context.Context, device string, r deviceReport) (reply reportReply, err error) {
	reply = reportReply{Reason: "none", ReportAfterMS: 30_000}
	for _, result := range r.Results {
		_, err1 := c.updateEnded.ExecContext(ctx, result.Task, result.Status)
		if err = errors.Join(err1, c.redis.Decr(ctx, "held").Err()); err != nil {
			return reply, err
		}
	}
	if r.Accept != nil && !*r.Accept {
		return reply, nil
	}
	task := taskGrant{Token: 1, LeaseMS: 300_000, Kind: "probe"}
	if err := c.selectPending.QueryRowContext(ctx, device).Scan(&task.ID); err != nil {
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return reply, err
	}
	free, err := c.incrementBelow.Run(ctx, c.redis, []string{"held"}, 1000).Int()
	if free == 1 {
		reply.Reason, reply.Task = "granted", &task
	}
	return reply, err
}

func measureClassic(s *testbed, size scale) figures {
	s.runSQL(`CREATE TABLE classic (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device text NOT NULL, state text NOT NULL, payload jsonb NOT NULL, ended_at timestamptz)`)
	s.runSQL(`CREATE INDEX ON classic (device, id) WHERE state = 'pending'`)
	devices := numberedNames("d", int(size.span.Seconds()*float64(size.maxCyclesPerSecond)/2))
	s.runSQL(`INSERT INTO classic (device, state, payload) SELECT 'd' || to_char(i, 'FM0000000'), 'pending', '{}' FROM generate_series(0, $1 - 1) AS i`, len(devices))
	s.startHelper("classic")
	return s.measureCPU(func() figures { return s.newHTTPLoad(size, devices).run(s, runCycle) })
}
