package bench

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// nothing is a job of River.
type nothing struct {
	Device string `json:"device"`
}

func (nothing) Kind() string { return "nothing" }

type doNothing struct {
	river.WorkerDefaults[nothing]

	done *atomic.Int64
}

func (w *doNothing) Work(context.Context, *river.Job[nothing]) error {
	w.done.Add(1)
	return nil
}

// riverJobs: as many workers, and as eager, as in River's own benchmark.
func riverJobs(s *site, size scale) figures {
	pool := s.pgx()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Migrate(s.ctx, rivermigrate.DirectionUp, nil)
	}
	s.must(err)
	var done atomic.Int64
	workers := river.NewWorkers()
	river.AddWorker(workers, &doNothing{done: &done})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}, Workers: workers,
	})
	s.must(err)
	jobs := names("d", int(size.span.Seconds()*float64(size.fastest)))
	s.chunks(jobs, func(some []string) {
		params := make([]river.InsertManyParams, len(some))
		for i, device := range some {
			params[i].Args = nothing{device}
		}
		_, err := client.InsertManyFast(s.ctx, params)
		s.must(err)
	})
	completed := func() (n int) {
		s.must(pool.QueryRow(s.ctx, "SELECT count(*) FROM river_job WHERE state = 'completed'").Scan(&n))
		return n
	}
	s.must(client.Start(s.ctx))
	defer func() { s.must(client.Stop(s.ctx)) }()
	return s.working(size.span, &done, len(jobs), completed)
}

// asynqJobs are in Redis alone, which loses those of the last second when it is killed.
func asynqJobs(s *site, size scale) figures {
	to := asynq.RedisClientOpt{Addr: s.redis.Addr}
	client := asynq.NewClient(to)
	defer client.Close()
	jobs := int(size.span.Seconds() * float64(size.fastest) / 2)
	s.atOnce(jobs, func(i int) {
		_, err := client.EnqueueContext(s.ctx, asynq.NewTask("nothing", []byte(digits(i))))
		if err != nil {
			s.t.Error(err)
		}
	})
	server := asynq.NewServer(to, asynq.Config{Concurrency: size.conns, LogLevel: asynq.FatalLevel})
	var done atomic.Int64
	s.must(server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		done.Add(1)
		return nil
	})))
	defer server.Shutdown()
	return s.working(size.span, &done, jobs, func() int { return int(done.Load()) })
}

// working measures workers that find their jobs by themselves, once they have begun.
func (s *site) working(span time.Duration, done *atomic.Int64, jobs int, completed func() int) figures {
	s.until(time.Minute, func() bool { return done.Load() > 0 })
	return s.measured(func() (f figures) {
		began := time.Now()
		s.until(span, func() bool { return int(done.Load()) == jobs })
		s.until(span, func() bool { return int(done.Load()) < jobs || completed() == jobs }) // written down
		f.count = completed()
		f.elapsed = time.Since(began)
		return f
	})
}

// batches of 10,000 tasks over the API, one after the other.
func batches(s *site, size scale) figures {
	s.serve(1)
	s.pool("p")
	devices := s.known("d", size.queued)
	return s.measured(func() (f figures) {
		for began := time.Now(); f.elapsed < size.span && !s.t.Failed(); f.elapsed = time.Since(began) {
			s.queue("p", devices)
			f.count += len(devices)
		}
		return f
	})
}

// copies are what Postgres takes for as many rows with one index.
func copies(s *site, size scale) figures {
	s.query(`CREATE TABLE copied (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, batch bigint NOT NULL, device text NOT NULL, state text NOT NULL, payload jsonb NOT NULL)`)
	pool, devices := s.pgx(), names("d", size.queued)
	return s.measured(func() (f figures) {
		for began := time.Now(); f.elapsed < size.span && s.ctx.Err() == nil; f.elapsed = time.Since(began) {
			n, err := pool.CopyFrom(s.ctx, pgx.Identifier{"copied"}, []string{"batch", "device", "state", "payload"},
				pgx.CopyFromSlice(len(devices), func(i int) ([]any, error) { return []any{1, devices[i], "pending", "{}"}, nil }))
			s.must(err)
			f.count += int(n)
		}
		return f
	})
}

// pgx is a pool of as many connections as a replica has.
func (s *site) pgx() *pgxpool.Pool {
	pool, err := pgxpool.New(s.ctx, s.dsn+"&pool_max_conns=20")
	s.must(err)
	s.t.Cleanup(pool.Close)
	return pool
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// until waits for the end of what the queues do by themselves.
func (s *site) until(span time.Duration, ended func() bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for over := time.After(span); !ended(); {
		select {
		case <-tick.C:
		case <-over:
			return
		case <-s.ctx.Done():
			return
		}
	}
}
