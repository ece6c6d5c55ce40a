package doctor_test

import (
	"database/sql"
	"maps"
	"strings"
	"testing"
	"time"

	_ "github.com/lib/pq" // the driver by which the tests change the servers

	"github.com/fleetslots/dispatcher/devices/dynsec"
	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/doctor"
	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

var (
	postgres servers.SharedPostgres //nolint:gochecknoglobals // one server per test binary: TestMain ends it
	redis    servers.SharedRedis    //nolint:gochecknoglobals // one server per test binary: TestMain ends it
)

func TestMain(m *testing.M) {
	m.Run()
	postgres.Close()
	redis.Close()
}

// newInstallation returns an installation in which doctor finds nothing wrong, except that the Postgres of the tests has
// little memory and Redis has no append-only file.
func newInstallation(t *testing.T, settings ...string) doctor.Installation {
	t.Helper()
	config := loadSettings(t, append([]string{
		"DISPATCHER_POSTGRES_DSN=" + postgres.NewLedger(t), "DISPATCHER_REDIS_URL=redis://" + redis.NewDatabase(t).Addr,
	}, settings...)...)
	return doctor.Installation{Config: config, Version: "v1", Now: time.Now}
}

// loadSettings returns the configuration with these settings. If a name occurs twice, the later setting applies.
func loadSettings(t *testing.T, settings ...string) app.Config {
	t.Helper()
	values := map[string]string{}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		values[name] = value
	}
	var environ []string
	for name := range maps.Keys(values) {
		environ = append(environ, name+"="+values[name])
	}
	config, err := app.Load(nil, environ, nil)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// expectFinding checks that doctor's finding for this check has this state and contains this text.
func expectFinding(t *testing.T, list []doctor.Finding, check string, state doctor.State, text string) {
	t.Helper()
	for _, f := range list {
		if f.Check != check {
			continue
		}
		if f.State != state || !strings.Contains(f.Found, text) {
			t.Errorf("%s: %s, %q; want %s, %q", check, f.State, f.Found, state, text)
		}
		if (f.Remedy == "") != (f.State == doctor.OK) {
			t.Errorf("%s: %s, with the remedy %q", check, f.State, f.Remedy)
		}
		return
	}
	t.Errorf("no check %q in %+v", check, list)
}

func TestAnInstallationThatIsWell(t *testing.T) {
	t.Parallel()
	p := newInstallation(t)
	recordReplica(t, p, store.Heartbeat{ID: "a", Version: "v1", Uptime: time.Minute, SinceReap: new(time.Second), State: []byte("{}"), Tallies: []byte("{}")})
	list := p.Examine(t.Context())
	if n := doctor.CountInState(list, doctor.Failed); n > 0 {
		t.Errorf("%d failed: %+v", n, list)
	}
	for check, says := range map[string]string{
		"settings": "valid", "postgres version": "1", "postgres durability": "fsync = on", "postgres isolation": "read committed",
		"postgres connections": "open up to 26", "schema": "all", "indexes": "all", "triggers": "all", "statistics": "tables",
		"redis": "one server", "redis eviction": "noeviction", "redis commands": "permitted",
		"clock of postgres": "", "clock of redis": "", "clocks of redis and postgres": "", "replicas": "1,", "versions": "v1", "reaper": "ago", "broker": "none",
	} {
		expectFinding(t, list, check, doctor.OK, says)
	}
	expectFinding(t, list, "postgres memory", doctor.Warning, "64MB")
	expectFinding(t, list, "postgres WAL", doctor.Warning, "256MB")
	expectFinding(t, list, "postgres disk", doctor.Unknown, "does not report")
	expectFinding(t, list, "redis persistence", doctor.Warning, "appendonly is no")
}

func recordReplica(t *testing.T, p doctor.Installation, beat store.Heartbeat) {
	t.Helper()
	ledger, err := store.OpenPostgres(t.Context(), p.Config.PostgresDSN, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	if err := ledger.RecordHeartbeat(t.Context(), beat); err != nil {
		t.Fatal(err)
	}
}

// TestALedgerThatIsNotAsItShouldBe checks the findings of doctor for faults of the ledger. Each fault is made in a
// database of its own.
func TestALedgerThatIsNotAsItShouldBe(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil, check string
		state        doctor.State
		says         string
	}{
		"a dropped index":      {"DROP INDEX tasks_of_device", "indexes", doctor.Failed, "tasks_of_device of tasks is missing"},
		"a dropped unique key": {"ALTER TABLE grants DROP CONSTRAINT grants_pool_slot_key", "indexes", doctor.Failed, "grants_pool_slot_key of grants is missing"},
		"an invalid index": {
			"UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'attempts_of_task'::regclass",
			"indexes", doctor.Failed, "attempts_of_task of attempts is not valid",
		},
		"a disabled trigger": {"ALTER TABLE tasks DISABLE TRIGGER tasks_counted", "triggers", doctor.Failed, "tasks_counted of tasks is disabled"},
		"a missing trigger":  {"DROP TRIGGER events_begin ON events", "triggers", doctor.Failed, "events_begin of events is missing"},
		"triggers off":       {"SET_FOR_DATABASE session_replication_role = replica", "postgres durability", doctor.Failed, "would run no triggers"},
		"lazy commits":       {"SET_FOR_DATABASE synchronous_commit = off", "postgres durability", doctor.Failed, "synchronous_commit = off"},
		"no room for replicas": {
			"INSERT INTO replicas SELECT n::text, '', '', 'v1', now(), now(), now(), '{}', '{}' FROM generate_series(1, 8) AS n",
			"postgres connections", doctor.Warning, "the replicas (8) open up to 208",
		},
		"two versions": {
			"INSERT INTO replicas SELECT n::text, '', '', 'v' || n, now(), now(), now(), '{}', '{}' FROM generate_series(1, 2) AS n",
			"versions", doctor.Warning, "replicas: v1, v2; this program: v1",
		},
		"a reaper that stands still": {
			"INSERT INTO replicas VALUES ('a', '', '', 'v1', now(), now(), now() - interval '1 hour', '{}', '{}')",
			"reaper", doctor.Warning, "ended 1h",
		},
		"nobody": {"SELECT 1", "replicas", doctor.Warning, "no replica"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newInstallation(t)
			db, err := sql.Open("postgres", p.Config.PostgresDSN)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if set, ok := strings.CutPrefix(test.spoil, "SET_FOR_DATABASE "); ok {
				err = db.QueryRowContext(t.Context(), "SELECT format('ALTER DATABASE %I SET ', current_database()) || $1", set).Scan(&test.spoil)
			}
			if err == nil {
				_, err = db.ExecContext(t.Context(), test.spoil)
			}
			if err != nil {
				t.Fatal(err)
			}
			expectFinding(t, p.Examine(t.Context()), test.check, test.state, test.says)
		})
	}
}

func TestAnOldSchema(t *testing.T) {
	t.Parallel()
	p := newInstallation(t, "DISPATCHER_POSTGRES_DSN="+postgres.Server(t).NewDatabase(t))
	list := p.Examine(t.Context())
	expectFinding(t, list, "schema", doctor.Failed, "00001_ledger.sql")
	expectFinding(t, list, "indexes", doctor.Unknown, "not complete")
	expectFinding(t, list, "replicas", doctor.Unknown, "")
}

func TestAServerThatLosesCommits(t *testing.T) {
	t.Parallel()
	server := servers.StartPostgres(t)
	db, err := sql.Open("postgres", server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, sql := range []string{"fsync = off", "full_page_writes = off", "autovacuum = off"} {
		if _, err := db.ExecContext(t.Context(), "ALTER SYSTEM SET "+sql); err != nil {
			t.Fatal(err)
		}
	}
	server.Stop()
	server.Start()
	list := newInstallation(t, "DISPATCHER_POSTGRES_DSN="+server.NewDatabase(t)).Examine(t.Context())
	expectFinding(t, list, "postgres durability", doctor.Failed, "fsync = off")
	expectFinding(t, list, "postgres full_page_writes", doctor.Warning, "off")
	expectFinding(t, list, "postgres autovacuum", doctor.Warning, "autovacuum = off")
}

func TestServersThatAreNotThere(t *testing.T) {
	t.Parallel()
	nobody := servers.FreeAddr(t)
	list := newInstallation(t, "DISPATCHER_POSTGRES_DSN=postgres://me:secret-word@"+nobody+"/x", "DISPATCHER_REDIS_URL=redis://:secret-word@"+nobody,
		"DISPATCHER_MQTT_URL=mqtt://"+nobody, "DISPATCHER_MQTT_PASSWORD=secret-word").Examine(t.Context())
	for _, check := range []string{"postgres", "redis", "broker"} {
		expectFinding(t, list, check, doctor.Failed, "refused")
	}
	for _, f := range list {
		if strings.Contains(f.Found+f.Remedy, "secret-word") {
			t.Errorf("a secret: %+v", f)
		}
	}
}

func TestARedisThatIsNotAsItShouldBe(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args        []string
		user, check string
		state       doctor.State
		says        string
	}{
		"eviction":          {[]string{"--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"}, "", "redis eviction", doctor.Failed, "allkeys-lru"},
		"eviction, one day": {[]string{"--maxmemory-policy", "allkeys-lru"}, "", "redis eviction", doctor.Warning, "allkeys-lru"},
		"nearly full":       {[]string{"--maxmemory", "1mb"}, "", "redis memory", doctor.Warning, "1.00M"},
		"a log":             {[]string{"--appendonly", "yes", "--dir", t.TempDir()}, "", "redis persistence", doctor.OK, "across a restart"},
		"forbidden":         {strings.Fields("--user poor on >p ~* &* +@all -zrank"), "poor:p@", "redis commands", doctor.Failed, "ZRANK"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newInstallation(t, "DISPATCHER_REDIS_URL=redis://"+test.user+servers.StartRedis(t, test.args...).Addr)
			expectFinding(t, p.Examine(t.Context()), test.check, test.state, test.says)
		})
	}
}

// TestClocksThatDiffer checks the findings of doctor if the clock of this machine differs from the other clocks by 3.5 s. The expected
// differences have a tolerance, because reading a clock takes time.
func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]time.Duration{"behind": -3500 * time.Millisecond, "ahead": 3500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newInstallation(t)
			p.Now = func() time.Time { return time.Now().Add(wrong) }
			list := p.Examine(t.Context())
			expectFinding(t, list, "clock of postgres", doctor.Warning, "3.")
			expectFinding(t, list, "clock of redis", doctor.Warning, "3.")
			expectFinding(t, list, "clocks of redis and postgres", doctor.OK, "")
		})
	}
}

func TestBrokers(t *testing.T) {
	t.Parallel()
	as := func(url, provision string) []string {
		return []string{
			"DISPATCHER_MQTT_URL=" + url, "DISPATCHER_MQTT_USER=" + servers.DispatcherUser,
			"DISPATCHER_MQTT_PASSWORD=" + servers.DispatcherPassword, "DISPATCHER_MQTT_PROVISION=" + provision,
		}
	}
	t.Run("as deployed", func(t *testing.T) {
		t.Parallel()
		broker := servers.StartMosquittoPasswords(t, map[string]string{"ar-7": "token-of-ar-7"})
		p := newInstallation(t, as(broker.DispatcherURL, "off")...)
		list := p.Examine(t.Context())
		expectFinding(t, list, "broker subscription", doctor.OK, "subscribe")
		expectFinding(t, list, "broker without an account", doctor.OK, "refused")
		expectFinding(t, list, "broker rules for devices", doctor.Unknown, "not checked")
		p.Device, p.DeviceToken = "ar-7", "token-of-ar-7"
		recordReplica(t, p, store.Heartbeat{ID: "a", Version: "v1", State: []byte("{}"), Tallies: []byte("{}")})
		list = p.Examine(t.Context())
		expectFinding(t, list, "broker subscription", doctor.Unknown, "not checked")
		expectFinding(t, list, "broker rules for devices", doctor.OK, "no replies to other devices")
		p.DeviceToken = "another"
		expectFinding(t, p.Examine(t.Context()), "broker rules for devices", doctor.Failed, "ar-7")
	})
	t.Run("without a ledger that knows the replicas", func(t *testing.T) {
		t.Parallel()
		broker := servers.StartMosquittoPasswords(t, nil)
		p := newInstallation(t, append(as(broker.DispatcherURL, "off"), "DISPATCHER_POSTGRES_DSN=postgres://me@"+servers.FreeAddr(t)+"/x")...)
		expectFinding(t, p.Examine(t.Context()), "broker subscription", doctor.Unknown, "not checked")
	})
	t.Run("a wrong password", func(t *testing.T) {
		t.Parallel()
		p := newInstallation(t, as(servers.StartMosquittoPasswords(t, nil).DispatcherURL, "off")...)
		p.Config.MQTTPassword = "another"
		expectFinding(t, p.Examine(t.Context()), "broker", doctor.Failed, "")
	})
	t.Run("open to anybody", func(t *testing.T) {
		t.Parallel()
		list := newInstallation(t, as("mqtt://"+servers.StartMosquitto(t).Addr, "off")...).Examine(t.Context())
		expectFinding(t, list, "broker without an account", doctor.Failed, "receive messages to devices")
	})
	t.Run("rules that let devices read all", func(t *testing.T) {
		t.Parallel()
		broker := servers.StartMosquittoWithUsers(t, map[string]string{servers.DispatcherUser: servers.DispatcherPassword, "ar-7": "token-of-ar-7"},
			"user "+servers.DispatcherUser, "topic readwrite #", "user ar-7", "topic readwrite #")
		p := newInstallation(t, as("mqtt://"+broker.Addr, "off")...)
		p.Device, p.DeviceToken = "ar-7", "token-of-ar-7"
		expectFinding(t, p.Examine(t.Context()), "broker rules for devices", doctor.Failed, "receives messages to another device")
	})
	t.Run("dynamic security", func(t *testing.T) {
		t.Parallel()
		broker := servers.StartMosquittoDynsec(t)
		p := newInstallation(t, as(broker.DispatcherURL, "dynsec")...)
		list := p.Examine(t.Context())
		expectFinding(t, list, "broker accounts", doctor.Warning, "addClientRole")
		accounts, err := dynsec.New(dynsec.Options{URL: broker.DispatcherURL, User: servers.DispatcherUser, Password: servers.DispatcherPassword})
		if err != nil {
			t.Fatal(err)
		}
		defer accounts.Close()
		if err := accounts.Check(t.Context()); err != nil { // sets the rights of the accounts, as serve does when it starts
			t.Fatal(err)
		}
		list = p.Examine(t.Context())
		expectFinding(t, list, "broker subscription", doctor.OK, "subscribe")
		expectFinding(t, list, "broker accounts", doctor.OK, "are correct")
	})
}
