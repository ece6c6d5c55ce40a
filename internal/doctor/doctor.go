// Package doctor examines an installation. It reads the settings of serve, queries the servers that they name, and reports for each check
// whether the result is good and how to fix it.
//
// It changes no data of the dispatcher. But it writes a key in Redis that expires by itself, and creates the table of migrations if that table
// is missing. It sends wakes to a device that does not exist, and to Installation.Device, whose session at the broker it ends.
//
// It does not check the disk of Postgres or the clock of the broker, because SQL and MQTT do not show them.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/fleetslots/dispatcher/internal/app"
	"github.com/fleetslots/dispatcher/internal/redisconn"
	"github.com/fleetslots/dispatcher/store"
)

// State is the result of a check.
type State string

// The states. Failed: the program does not work, or a promise may be broken. Warning: it works, but not
// as well as it could. Unknown: the doctor cannot find out.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
	Unknown State = "unknown"
)

// Finding is the result of one check. It contains no secrets.
type Finding struct {
	Check  string `json:"check"`
	State  State  `json:"state"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // how to fix it; empty if State is OK
}

// newFinding returns the finding of a check. If isBad is true, the finding has the state badState and the remedy.
// Otherwise its state is OK and it has no remedy.
func newFinding(checkName string, isBad bool, badState State, found, remedy string) Finding {
	if isBad {
		return Finding{checkName, badState, found, remedy}
	}
	return Finding{Check: checkName, State: OK, Found: found}
}

// Installation is an installation of the dispatcher that the doctor examines.
type Installation struct {
	Config  app.Config
	Version string // version of this program
	Now     func() time.Time

	// Device and DeviceToken are the broker account of a device, whose rights are tested. If Device is empty, no rights of devices are
	// tested.
	Device, DeviceToken string
}

// queryTimeout is the time limit for all queries to one server.
const queryTimeout = 15 * time.Second

// Examine runs all checks. If a required setting is missing, it returns only this finding. A server
// that does not answer is one finding, and the checks that depend on it are left out.
func (p Installation) Examine(ctx context.Context) []Finding {
	if err := p.Config.CheckComplete(); err != nil {
		return []Finding{Misconfigured(err)}
	}
	list := p.checkSettings()
	replicas := replicasUnknown
	ledger, findings := p.openLedger(ctx)
	list = append(list, findings...)
	if ledger != nil {
		defer func() { _ = ledger.Close() }() //nolint:contextcheck // the ledger is closed even if ctx has ended
		findings, replicas = p.checkPostgres(ctx, ledger)
		list = append(list, findings...)
	}
	redis, findings := p.openRedis()
	list = append(list, findings...)
	if redis != nil {
		defer func() { _ = redis.Close() }()
		list = append(list, p.checkRedis(ctx, redis)...)
	}
	list = append(list, p.checkClocks(ctx, ledger, redis)...)
	return append(list, p.checkBroker(ctx, replicas)...)
}

// openLedger opens the configured ledger. If that fails, it returns nil and a finding about the failure.
func (p Installation) openLedger(ctx context.Context) (ledger *store.Store, failure []Finding) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	ledger, err := store.OpenPostgres(ctx, p.Config.PostgresDSN, store.Options{MaxOpenConns: 2})
	if err != nil {
		return nil, []Finding{{"postgres", Failed, err.Error(), "start it, or correct postgres_dsn: host, port, user, password, database, sslmode"}}
	}
	return ledger, nil
}

// openRedis opens the configured Redis. If that fails, it returns nil and a finding about the failure.
func (p Installation) openRedis() (conn *redisconn.Conn, failure []Finding) {
	options, err := redisconn.ParseURL(p.Config.RedisURL)
	if err != nil {
		return nil, []Finding{{"redis", Failed, err.Error(), "correct redis_url"}}
	}
	return redisconn.Open(options), nil
}

// CountInState returns the number of findings that have this state.
func CountInState(findings []Finding, state State) (n int) {
	for _, f := range findings {
		if f.State == state {
			n++
		}
	}
	return n
}

// formatBytes returns a number of bytes as text for people.
func formatBytes(bytes int64) string {
	const unit = 1 << 10
	value, names := float64(bytes), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for value >= unit && len(names) > 1 {
		value, names = value/unit, names[1:]
	}
	return fmt.Sprintf("%.4g %s", value, names[0])
}
