package servers

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver of the readiness check and of NewDatabase

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// PostgresServer is a Postgres server that belongs to the tests. Its durability settings are the same as in
// production (fsync and synchronous_commit on). So tests that kill the server check what is promised.
type PostgresServer struct {
	*Process
	addr      string
	databases *atomic.Int64
}

// smallPostgres has settings for a server that shares its machine with other servers.
const smallPostgres = "shared_buffers = 64MB\nmax_wal_size = 256MB\n"

// StartPostgres starts a Postgres server for one test. It is removed when the test ends.
func StartPostgres(tb testing.TB) *PostgresServer {
	tb.Helper()
	return startTestPostgres(tb, smallPostgres)
}

// StartDeployedPostgres does the same as StartPostgres, with the settings in deploy/postgres.
func StartDeployedPostgres(tb testing.TB) *PostgresServer {
	tb.Helper()
	settings, err := os.ReadFile(filepath.Join(repositoryPath(tb), "deploy", "postgres", "postgresql.conf"))
	must.Succeed(tb, err)
	return startTestPostgres(tb, string(settings))
}

func startTestPostgres(tb testing.TB, settings string) *PostgresServer {
	tb.Helper()
	s, remove := startPostgres(tb, settings)
	tb.Cleanup(func() {
		s.Kill()
		remove()
	})
	return s
}

// startPostgres starts a Postgres server. The caller must call remove, because a shared server lives longer than
// the test that started it.
func startPostgres(tb testing.TB, settings string) (s *PostgresServer, remove func()) {
	tb.Helper()
	initdb, postgres := RequireProgram(tb, "initdb"), RequireProgram(tb, "postgres")
	credential, dir := ServerUser(tb), ClusterDir(tb)
	data := filepath.Join(dir, "data")
	asServerUser := func(cmd *exec.Cmd) *exec.Cmd {
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential}
		return cmd
	}
	if credential != nil {
		if err := os.Chown(dir, int(credential.Uid), int(credential.Gid)); err != nil {
			tb.Fatalf("handing %s over: %v", dir, err)
		}
	}
	init := asServerUser(exec.CommandContext(tb.Context(), initdb, "--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D", data))
	if out, err := init.CombinedOutput(); err != nil {
		tb.Fatalf("initdb: %v\n%s", err, out)
	}
	must.Succeed(tb, appendTo(filepath.Join(data, "postgresql.conf"), settings))
	s = &PostgresServer{addr: FreeAddr(tb), databases: &atomic.Int64{}}
	_, port, _ := net.SplitHostPort(s.addr)
	s.Process = &Process{tb: tb, ready: s.checkAnswers, command: func() *exec.Cmd {
		return asServerUser(exec.Command(postgres, "-D", data, "-p", port,
			"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=200",
			"-c", "dynamic_shared_memory_type=mmap"))
	}}
	s.Start()
	return s, func() { _ = os.RemoveAll(dir) }
}

func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Start starts the server again on the same data after Kill, Stop or StopImmediately. The server refuses to start
// while backend processes of a killed server still run, which may take a moment. Only in this case, Start tries
// again.
func (s *PostgresServer) Start() {
	s.tb.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(startTimeout); ; <-tick.C {
		s.spawn()
		if s.waitUntilReadyOrEnded(tick.C) {
			return
		}
		if oldBackendsRun := bytes.Contains(s.output.Bytes(), []byte("shared memory block")); !oldBackendsRun || time.Now().After(deadline) {
			s.tb.Fatalf("postgres ended before it was ready:\n%s", s.output)
		}
	}
}

// waitUntilReadyOrEnded waits until the started server is ready (true) or has ended (false).
func (s *PostgresServer) waitUntilReadyOrEnded(tick <-chan time.Time) (isReady bool) {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if s.ready() == nil {
			return true
		}
		select {
		case <-s.exited:
			return false
		case <-tick:
		}
	}
	s.Kill()
	return false
}

// Stop ends the server with SIGINT and waits for it. With SIGTERM, the server would wait until all clients have
// disconnected.
func (s *PostgresServer) Stop() { s.signalAndWait(syscall.SIGINT) }

// StopImmediately stops the server without a checkpoint (SIGQUIT), which is similar to a power cut. But unlike in
// a power cut, the kernel still writes the data that the server has passed to it.
func (s *PostgresServer) StopImmediately() { s.signalAndWait(syscall.SIGQUIT) }

// Addr returns the address (host:port) of the server. It stays the same when the server is restarted.
func (s *PostgresServer) Addr() string { return s.addr }

// DSN returns the DSN of a database of this server. The database "postgres" always exists.
func (s *PostgresServer) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@%s/%s?sslmode=disable&connect_timeout=3", s.addr, database)
}

// open opens a database to prepare it for tests. A connection may take a minute, because the machine may be slow.
func (s *PostgresServer) open(database string) (*sql.DB, error) {
	return sql.Open("postgres", strings.Replace(s.DSN(database), "connect_timeout=3", "connect_timeout=60", 1))
}

// NewDatabase creates an empty database for one test and returns its DSN.
func (s *PostgresServer) NewDatabase(tb testing.TB) string {
	tb.Helper()
	return s.copyDatabase(tb, "template0")
}

// copyDatabase creates a copy of the database template under a new name and returns the DSN of the copy.
func (s *PostgresServer) copyDatabase(tb testing.TB, template string) string {
	tb.Helper()
	name := "test_" + strconv.FormatInt(s.databases.Add(1), 10)
	s.createDatabase(tb, name, template)
	return s.DSN(name)
}

func (s *PostgresServer) createDatabase(tb testing.TB, name, template string) {
	tb.Helper()
	db, err := s.open("postgres")
	must.Succeed(tb, err)
	defer func() { _ = db.Close() }()
	// FILE_COPY needs half of the processor time of the default strategy, which writes each page to the write-ahead log.
	if _, err := db.ExecContext(tb.Context(), "CREATE DATABASE "+name+" TEMPLATE "+template+" STRATEGY FILE_COPY"); err != nil {
		tb.Fatalf("creating a database: %v", err)
	}
}

func (s *PostgresServer) checkAnswers() error {
	db, err := sql.Open("postgres", s.DSN("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	return db.PingContext(ctx)
}

// ClusterDir creates a folder for the data of a Postgres server. It does not use tb.TempDir, which only its owner
// can read, because the server runs as another user. The name of the folder contains the id of the process that
// uses it.
func ClusterDir(tb testing.TB) string {
	tb.Helper()
	parent := fastDir()
	removeOrphans(parent)
	dir, err := os.MkdirTemp(parent, fmt.Sprintf("%s%s-%d-", clusterPrefix, strings.ToLower(filepath.Base(os.Args[0])), os.Getpid()))
	must.Succeed(tb, err)
	return dir
}

const clusterPrefix = "postgres-"

// removeOrphans removes the folders of test processes that were killed.
func removeOrphans(parent string) {
	dirs, _ := filepath.Glob(filepath.Join(cmp.Or(parent, os.TempDir()), clusterPrefix+"*-*-*"))
	for _, dir := range dirs {
		parts := strings.Split(filepath.Base(dir), "-")
		pid, err := strconv.Atoi(parts[len(parts)-2])
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = os.RemoveAll(dir)
		}
	}
}

// memoryDir is a file system in memory. memoryNeeded is the free space in bytes that the Postgres servers of all
// concurrent test binaries may need.
const (
	memoryDir    = "/dev/shm"
	memoryNeeded = 4 << 30
)

// fastDir returns a folder in memory, in which flushing data to the disk costs nothing. If no such folder has
// enough space, it returns "". On a shared disk, a flush may take seconds. A folder in memory also keeps the
// commits of a killed server.
func fastDir() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryDir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < memoryNeeded {
		return ""
	}
	return memoryDir
}

// ServerUser returns the user as which the server must run, because Postgres refuses to run as root. It returns nil
// if the server can run as the user of the test.
func ServerUser(tb testing.TB) *syscall.Credential {
	tb.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	tb.Fatal("postgres does not run as root, and there is no user postgres or nobody")
	return nil
}
