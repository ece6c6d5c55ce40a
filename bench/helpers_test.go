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

// TestMain lets this program be one of the servers that the dispatcher is compared with,
// in a process of its own.
func TestMain(m *testing.M) {
	switch os.Getenv("BENCH_HELPER") {
	case "bare":
		serveHelper(bare)
	case "answers":
		serveAnswers()
	case "transport":
		serveTransport()
	case "classic":
		c, err := openClassic(os.Getenv("BENCH_DSN"), os.Getenv("BENCH_REDIS"))
		if err != nil {
			panic(err)
		}
		serveHelper(c.answer)
	default:
		m.Run()
	}
}

// reported is what a device sends, and replied what it gets; the same as the dispatcher's.
type (
	reported struct {
		Results []struct {
			Task, Token int64
			Status      string
		}
		Accept *bool
	}
	replied struct {
		Reason        string    `json:"reason"`
		Task          *granting `json:"task,omitempty"`
		ReportAfterMS int64     `json:"report_after_ms"`
	}
	granting struct {
		ID      int64  `json:"id"`
		Token   int64  `json:"token"`
		LeaseMS int64  `json:"lease_ms"`
		Kind    string `json:"kind"`
	}
)

func serveHelper(answer func(ctx context.Context, device string, r reported) (replied, error)) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v1/devices/{device}/report", func(w http.ResponseWriter, r *http.Request) {
		var report reported
		err := json.NewDecoder(r.Body).Decode(&report)
		if err == nil {
			var reply replied
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

// bare says that there is no task, whatever it is asked.
func bare(context.Context, string, reported) (replied, error) {
	return replied{Reason: "none", ReportAfterMS: 30_000}, nil
}

// bareReports is what HTTP and JSON cost alone.
func bareReports(s *site, size scale) figures {
	s.helper("bare")
	l := s.cycling(size, names("d", size.queued))
	l.around = true
	return s.measured(func() figures { return l.run(s, asking) })
}

// classic is what is often written: the device's pending task is selected, a counter in
// Redis raised up to a limit, and the task updated with its result. It neither survives a
// crash nor a message that comes twice.
type classic struct {
	pending, done *sql.Stmt
	redis         *redis.Client
	upTo          *redis.Script // the plain semaphore
}

func openClassic(dsn, addr string) (*classic, error) {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(20)
	db.SetMaxIdleConns(20)
	pending, err1 := db.Prepare("SELECT id FROM classic WHERE device = $1 AND state = 'pending' ORDER BY id LIMIT 1")
	done, err2 := db.Prepare("UPDATE classic SET state = $2, ended_at = now() WHERE id = $1")
	upTo := redis.NewScript(`if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(ARGV[1]) then return 0 end redis.call('INCR', KEYS[1]) return 1`)
	return &classic{pending, done, redis.NewClient(&redis.Options{Addr: addr}), upTo}, errors.Join(err1, err2)
}

func (c *classic) answer(ctx context.Context, device string, r reported) (reply replied, err error) {
	reply = replied{Reason: "none", ReportAfterMS: 30_000}
	for _, result := range r.Results {
		_, err1 := c.done.ExecContext(ctx, result.Task, result.Status)
		if err = errors.Join(err1, c.redis.Decr(ctx, "held").Err()); err != nil {
			return reply, err
		}
	}
	if r.Accept != nil && !*r.Accept {
		return reply, nil
	}
	task := granting{Token: 1, LeaseMS: 300_000, Kind: "probe"}
	if err := c.pending.QueryRowContext(ctx, device).Scan(&task.ID); err != nil {
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return reply, err
	}
	free, err := c.upTo.Run(ctx, c.redis, []string{"held"}, 1000).Int()
	if free == 1 {
		reply.Reason, reply.Task = "granted", &task
	}
	return reply, err
}

func classicCycles(s *site, size scale) figures {
	s.query(`CREATE TABLE classic (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, device text NOT NULL, state text NOT NULL, payload jsonb NOT NULL, ended_at timestamptz)`)
	s.query(`CREATE INDEX ON classic (device, id) WHERE state = 'pending'`)
	devices := names("d", int(size.span.Seconds()*float64(size.fastest)/2))
	s.query(`INSERT INTO classic (device, state, payload) SELECT 'd' || to_char(i, 'FM0000000'), 'pending', '{}' FROM generate_series(0, $1 - 1) AS i`, len(devices))
	s.helper("classic")
	return s.measured(func() figures { return s.cycling(size, devices).run(s, cycle) })
}
