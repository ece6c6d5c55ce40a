package store_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	servers "github.com/fleetslots/dispatcher/internal/test/servers"
	"github.com/fleetslots/dispatcher/store"
)

// TestAnHourOfLastSeenTimes measures how much work Postgres has with the last-seen times of 100,000 devices, each of which reports once a
// minute for an hour. The test takes only some minutes, so it also makes vacuums run sooner:
//
//	MILLION=1 go test ./store -run 'TestAnHourOfLastSeenTimes$' -v -timeout 30m
func TestAnHourOfLastSeenTimes(t *testing.T) {
	t.Parallel()
	if os.Getenv("MILLION") == "" {
		t.Skip("runs with MILLION=1 in the environment")
	}
	const all, minutes, flushes = 100_000, 60, 6
	server := servers.StartPostgres(t)
	l := migrateOpened(t)(store.OpenPostgres(t.Context(), server.NewDatabase(t), longTimeouts()))
	l.exec(`ALTER SYSTEM SET autovacuum_naptime = 1`)
	l.exec(`SELECT pg_reload_conf()`)
	l.insertDevices(all)
	now, used := time.Now(), servers.ReadProcessorTimes().TreeTime(server.Pid())
	for minute := range minutes {
		for flush := range flushes {
			at := now.Add(time.Duration(minute*flushes+flush) * 10 * time.Second)
			for first := flush; first < all; first += 5000 * flushes {
				l.recordSeen(at, first, min(all, first+5000*flushes), flushes)
			}
		}
		if minute%5 == 4 {
			l.exec(`CHECKPOINT`)
		}
		if minute%10 == 9 || minute == 0 {
			l.Logf("minute %d, processors %s: %s", minute+1, servers.ReadProcessorTimes().TreeTime(server.Pid())-used, l.writeStats())
		}
	}
}

// insertDevices registers n devices with tags and attributes of realistic size.
func (l *ledger) insertDevices(n int) {
	l.Helper()
	l.exec(fmt.Sprintf(`
		INSERT INTO devices (id, tags, attributes, created_at)
		SELECT 'device-' || lpad(n::text, 7, '0'),
			jsonb_build_object('area', n %% 1000, 'half', n %% 2, 'model', 'm-' || n %% 7, 'site', 'site-' || n %% 5000),
			json_build_object('firmware', '1.2.' || n %% 9, 'disk', n %% 1000, 'address', '10.0.0.' || n %% 250, 'uptime', n), now()
		FROM generate_series(0, %d) n`, n-1))
	l.exec(`VACUUM ANALYZE devices`)
}

// recordSeen records the parameter at as the last-seen time of every step-th device whose number is at least from and below to.
func (l *ledger) recordSeen(at time.Time, from, to, step int) {
	l.Helper()
	seen := map[string]store.LastReport{}
	for n := from; n < to; n += step {
		seen[fmt.Sprintf("device-%07d", n)] = store.LastReport{At: at}
	}
	l.must(l.TouchDevices(l.Context(), seen))
}

func (l *ledger) writeStats() (s string) {
	l.Helper()
	l.must(l.DB().QueryRowContext(l.Context(), `
		SELECT format('%s updates, %s HOT, table %s, indexes %s, WAL %s, %s vacuums', n_tup_upd, n_tup_hot_upd, pg_size_pretty(pg_table_size('devices')),
			pg_size_pretty(pg_indexes_size('devices')), pg_size_pretty(pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')), autovacuum_count)
		FROM pg_stat_user_tables WHERE relname = 'devices'`).Scan(&s))
	return s
}
