package credentials

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/meters"
	"github.com/fleetslots/dispatcher/internal/pace"
	"github.com/fleetslots/dispatcher/internal/rescue"
	"github.com/fleetslots/dispatcher/store"
)

var (
	// ErrBroker is returned if the broker does not accept a device's new secret. Nothing was changed, and the request can be repeated.
	ErrBroker = errors.New("the MQTT broker cannot be updated")
	// ErrOnePassword is returned if an import would rotate a token and the broker stores only one password for each account. A failed
	// import could not restore the old password.
	ErrOnePassword = errors.New("the MQTT broker stores one password for each account, so an import cannot rotate tokens")
)

// FleetMode is the set of rights of a fleet token.
type FleetMode string

// The modes of a fleet token. In both modes, a fleet token is refused for a device that has used a token of its own.
const (
	FleetAny    FleetMode = "any"    // acts for any device, and registers unknown devices
	FleetEnroll FleetMode = "enroll" // gives a device a token of its own
)

// Ledger stores devices and their credentials. *store.Store implements it.
type Ledger interface {
	deviceLedger
	tokenLedger
}

// deviceLedger changes and imports devices for operators. Before an import, it records which accounts are created at the broker.
type deviceLedger interface {
	CreateDevice(ctx context.Context, actor, id string, spec store.DeviceSpec, tokenHash []byte, setAccount store.SetAccount) (store.Device, error)
	RotateDeviceToken(ctx context.Context, actor, id string, tokenHash []byte, overlap time.Duration, set store.SetAccount) (olderUntil time.Time, err error)
	SetBlocked(ctx context.Context, actor, id string, blocked bool, reason string) error
	SetAllBlocked(ctx context.Context, actor string, ids []string, blocked bool, reason string, dryRun bool) (changed int, err error)
	DeleteDevice(ctx context.Context, actor, id string, cancelOpenTasks bool) (store.DeviceRemoval, error)
	DeleteDevices(ctx context.Context, actor string, ids []string, options store.DeviceDeletion) (store.DeviceRemoval, error)
	ImportDevices(ctx context.Context, actor string, newDevices []store.NewDevice, onExisting store.OnExisting, overlap time.Duration, stage store.Stage) (gotToken []bool, err error)
	StageAccounts(ctx context.Context, stage store.Stage, newDevices []store.NewDevice, onExisting store.OnExisting, keepFor time.Duration) ([]store.StagedDevice, error)
	SetStagedAccounts(ctx context.Context, stage store.Stage, devices []string, keepFor time.Duration, setAccounts func(context.Context) error) error
	DropStage(ctx context.Context, stage store.Stage, devices []string) error
}

// tokenLedger finds tokens, registers devices when they report, and applies the recorded changes of accounts at the broker.
type tokenLedger interface {
	ApplyAccountChanges(ctx context.Context, limit int, applyTimeout time.Duration, apply store.ApplyAccount) (applied int, err error)
	SuspendAccount(ctx context.Context, device string, duration time.Duration, disable func(context.Context) error) (isSuspended bool, err error)
	RegisterDevices(ctx context.Context, all ...store.Registration) ([]store.Registered, error)
	EnrollDevice(ctx context.Context, id string, tokenHash []byte, set store.SetAccount) error
	MarkOwnTokens(ctx context.Context, devices ...string) error
	TokenByHash(ctx context.Context, hash []byte) (store.Token, error)
	ChangedTokens(ctx context.Context, since int64) (store.TokenChanges, error)
}

// Config configures a Registry.
type Config struct {
	Ledger   Ledger
	ReadView func(ctx context.Context, device devices.ID) (store.DeviceView, error)
	Accounts Accounts // nil if the broker has no accounts

	FleetTokens []string     // zero, one or two tokens (two during a rotation)
	FleetMode   FleetMode    // what a fleet token may do
	Rate        pace.Options // how many devices one fleet token, or all sessions, may register; Now is ignored
	BlockNew    bool         // a device that registers itself is blocked until an operator unblocks it

	Meters   *meters.Set
	Logger   *slog.Logger
	Panicked rescue.PanicHandler
	Now      func() time.Time // for elapsed time only
}

// Registry registers devices and manages their credentials. It is safe for concurrent use.
type Registry struct {
	*tokenCache

	config                Config
	accounts              *accounts
	combinedRegistrations *combinedRegistrations
	firstTokenUses        *combinedFirstUses
	registrations         *registrationLimiter
}

// New returns a Registry with this configuration.
func New(config Config) *Registry {
	return &Registry{
		tokenCache: newTokenCache(config.Ledger, config.Now), config: config, accounts: newAccounts(config.Accounts, config.Ledger),
		combinedRegistrations: newCombinedRegistrations(config.Ledger, config.Panicked), firstTokenUses: newCombinedFirstUses(config.Ledger, config.Panicked),
		registrations: newRegistrationLimiter(config),
	}
}
