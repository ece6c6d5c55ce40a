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

// noopJob is a job of the job queue River that does nothing.
type noopJob struct {
	Device string `json:"device"`
}

func (noopJob) Kind() string { return "nothing" }

type noopWorker struct {
	river.WorkerDefaults[noopJob]

	done *atomic.Int64
}

func (w *noopWorker) Work(context.Context, *river.Job[noopJob]) error {
	w.done.Add(1)
	return nil
}

// measureRiver measures jobs of River that do nothing. River's own benchmark has the same number of workers and the
// same polling intervals.
func measureRiver(s *testbed, size scale) figures {
	pool := s.openPgxPool()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Migrate(s.ctx, rivermigrate.DirectionUp, nil)
	}
	s.failOnError(err)
	var done atomic.Int64
	workers := river.NewWorkers()
	river.AddWorker(workers, &noopWorker{done: &done})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2000}}, Workers: workers,
	})
	s.failOnError(err)
	jobs := numberedNames("d", int(size.span.Seconds()*float64(size.maxCyclesPerSecond)))
	s.forEachChunk(jobs, func(some []string) {
		params := make([]river.InsertManyParams, len(some))
		for i, device := range some {
			params[i].Args = noopJob{device}
		}
		_, err := client.InsertManyFast(s.ctx, params)
		s.failOnError(err)
	})
	completed := func() (n int) {
		s.failOnError(pool.QueryRow(s.ctx, "SELECT count(*) FROM river_job WHERE state = 'completed'").Scan(&n))
		return n
	}
	s.failOnError(client.Start(s.ctx))
	defer func() { s.failOnError(client.Stop(s.ctx)) }()
	return s.measureWorkers(size.span, &done, len(jobs), completed)
}

// measureAsynq measures jobs of the job queue asynq. Its jobs are stored only in Redis. If Redis is killed, it
// loses the jobs of the last second.
func measureAsynq(s *testbed, size scale) figures {
	to := asynq.RedisClientOpt{Addr: s.redis.Addr}
	client := asynq.NewClient(to)
	defer client.Close()
	jobs := int(size.span.Seconds() * float64(size.maxCyclesPerSecond) / 2)
	s.runConcurrently(jobs, func(i int) {
		_, err := client.EnqueueContext(s.ctx, asynq.NewTask("nothing", []byte(sevenDigits(i))))
		if err != nil {
			s.t.Error(err)
		}
	})
	server := asynq.NewServer(to, asynq.Config{Concurrency: size.conns, LogLevel: asynq.FatalLevel})
	var done atomic.Int64
	s.failOnError(server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		done.Add(1)
		return nil
	})))
	defer server.Shutdown()
	return s.measureWorkers(size.span, &done, jobs, func() int { return int(done.Load()) })
}

// measureWorkers measures the workers of a job queue, which fetch their jobs by themselves. The measurement begins
// when the first job is done.
func (s *testbed) measureWorkers(span time.Duration, done *atomic.Int64, jobs int, completed func() int) figures {
	s.waitFor(time.Minute, func() bool { return done.Load() > 0 })
	return s.measureCPU(func() (f figures) {
		began := time.Now()
		s.waitFor(span, func() bool { return int(done.Load()) == jobs })
		s.waitFor(span, func() bool { return int(done.Load()) < jobs || completed() == jobs }) // wait until the queue has stored all results
		f.count = completed()
		f.elapsed = time.Since(began)
		return f
	})
}

// measureBatches measures the queueing of batches of 10,000 tasks over the API, one batch after the other.
func measureBatches(s *testbed, size scale) figures {
	s.startReplicas(1)
	s.createPool("p")
	devices := s.registerDevices("d", size.queuedTasks)
	return s.measureCPU(func() (f figures) {
		for began := time.Now(); f.elapsed < size.span && !s.t.Failed(); f.elapsed = time.Since(began) {
			s.queueBatches("p", devices)
			f.count += len(devices)
		}
		return f
	})
}

// measureCopies measures how fast Postgres copies rows that are like the rows of tasks into a table with one index.
func measureCopies(s *testbed, size scale) figures {
	s.runSQL(`CREATE TABLE copied (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, batch bigint NOT NULL, device text NOT NULL, state text NOT NULL, payload jsonb NOT NULL)`)
	pool, devices := s.openPgxPool(), numberedNames("d", size.queuedTasks)
	return s.measureCPU(func() (f figures) {
		for began := time.Now(); f.elapsed < size.span && s.ctx.Err() == nil; f.elapsed = time.Since(began) {
			n, err := pool.CopyFrom(s.ctx, pgx.Identifier{"copied"}, []string{"batch", "device", "state", "payload"},
				pgx.CopyFromSlice(len(devices), func(i int) ([]any, error) { return []any{1, devices[i], "pending", "{}"}, nil }))
			s.failOnError(err)
			f.count += int(n)
		}
		return f
	})
}

// openPgxPool opens a pool of at most 20 connections to Postgres, as many as a replica has.
func (s *testbed) openPgxPool() *pgxpool.Pool {
	pool, err := pgxpool.New(s.ctx, s.dsn+"&pool_max_conns=20")
	s.failOnError(err)
	s.t.Cleanup(pool.Close)
	return pool
}

func (s *testbed) failOnError(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// waitFor waits until ended returns true, but at most for the time span.
func (s *testbed) waitFor(span time.Duration, ended func() bool) {
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
