package dispatcher

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/store"
)

// FleetMode is what a fleet token may do.
type FleetMode string

// The modes of a fleet token. In both it is refused for a device that has used
// a token of its own.
const (
	FleetAny    FleetMode = "any"    // acts for any device and registers unknown ones
	FleetEnroll FleetMode = "enroll" // gives a device a token of its own
)

// Caller is who reports.
type Caller = devices.Caller

// The ways of a caller to prove to be the device.
const (
	ViaOwnToken   = devices.ViaOwnToken
	ViaFleetToken = devices.ViaFleetToken
	ViaBroker     = devices.ViaSession // the broker authenticated it; its topic is believed
)

// Authenticate says who the bearer of token is, reporting as device. It
// returns ErrUnauthenticated for a token nobody has, ErrForbidden for another
// device's.
func (d *Dispatcher) Authenticate(ctx context.Context, device devices.ID, token string) (Caller, error) {
	return d.authenticate(ctx, device, token, d.TokenOf)
}

func (d *Dispatcher) authenticate(
	ctx context.Context, device devices.ID, token string, tokenOf func(context.Context, string) (store.Token, error),
) (Caller, error) {
	if token == "" {
		return Caller{}, ErrUnauthenticated
	}
	for _, fleet := range d.config.FleetTokens {
		if subtle.ConstantTimeCompare([]byte(fleet), []byte(token)) == 1 {
			return Caller{Device: device, Via: ViaFleetToken}, nil
		}
	}
	t, err := tokenOf(ctx, token)
	if err != nil {
		return Caller{}, err
	}
	if t.Device != string(device) {
		return Caller{}, ErrForbidden
	}
	return Caller{Device: device, Via: ViaOwnToken, Token: HashToken(token)}, nil
}

// AuthenticateSession says whether a device may open a session at a broker
// with this token; its reports then come as ViaBroker. It returns what
// Authenticate does, and ErrForbidden for a blocked device and for a fleet
// token that only enrols, or of a device that has its own. A session outlives what is remembered of
// a token, so the ledger itself is asked.
func (d *Dispatcher) AuthenticateSession(ctx context.Context, device devices.ID, token string) error {
	caller, err := d.authenticate(ctx, device, token, d.lookUp)
	if err != nil {
		return err
	}
	view, err := d.look(ctx, device)
	if err != nil {
		return err
	}
	switch {
	case view.Device != nil && view.Device.Blocked:
		return ErrForbidden
	case caller.Via == ViaOwnToken:
		return d.admitOwner(ctx, device, view.Device)
	case d.config.FleetMode != FleetAny || view.Device != nil && view.Device.OwnToken:
		return ErrForbidden
	case view.Deleted:
		// A session does not bring back a deleted device; a fleet token does.
		back, err := d.ensure(ctx, device)
		if err == nil && back.Blocked {
			err = ErrForbidden
		}
		return err
	}
	return nil
}

// TokenOf looks a bearer token up. What it says is at most five seconds old.
func (d *Dispatcher) TokenOf(ctx context.Context, token string) (store.Token, error) {
	if token == "" {
		return store.Token{}, ErrUnauthenticated
	}
	return d.tokenOf(ctx, HashToken(token))
}

func (d *Dispatcher) tokenOf(ctx context.Context, hash [sha256.Size]byte) (store.Token, error) {
	if t, ok := d.known.get(hash); ok {
		return t, nil
	}
	t, err := d.lookUpHash(ctx, hash)
	if err == nil {
		d.known.put(hash, t)
	}
	return t, err
}

// lookUp is TokenOf by the ledger itself.
func (d *Dispatcher) lookUp(ctx context.Context, token string) (store.Token, error) {
	return d.lookUpHash(ctx, HashToken(token))
}

func (d *Dispatcher) lookUpHash(ctx context.Context, hash [sha256.Size]byte) (store.Token, error) {
	t, err := d.store.TokenByHash(ctx, hash[:])
	if errors.Is(err, store.ErrNotFound) {
		return store.Token{}, ErrUnauthenticated
	}
	if err != nil {
		return store.Token{}, fmt.Errorf("%w: looking up a token: %w", ErrUnavailable, err)
	}
	return t, nil
}

// NewToken makes a secret of 256 bits; only its hash is ever stored.
func NewToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// HashToken is how a secret is stored: 256 random bits need no salt.
func HashToken(token string) [sha256.Size]byte { return sha256.Sum256([]byte(token)) }

// admit checks that the caller may act for the device and registers a device
// that a fleet token vouches for. Nothing is changed for a caller it refuses.
func (d *Dispatcher) admit(ctx context.Context, h *handling) error {
	device := h.view.Device
	switch h.caller.Via {
	case ViaOwnToken:
		return d.admitOwner(ctx, h.caller.Device, device)
	case ViaBroker:
		if err := d.admitSession(ctx, h); err != nil {
			return err
		}
	default:
		if device != nil && device.OwnToken {
			return ErrForbidden
		}
		if d.config.FleetMode == FleetEnroll {
			return d.enroll(ctx, h)
		}
	}
	if device != nil {
		return nil
	}
	return d.register(ctx, h)
}

// admitSession checks a device that a broker let in.
func (d *Dispatcher) admitSession(ctx context.Context, h *handling) error {
	device := h.view.Device
	switch {
	case device == nil:
		if h.view.Deleted || len(d.config.FleetTokens) == 0 || d.config.FleetMode != FleetAny {
			return ErrForbidden
		}
	case device.Blocked || device.Revoked():
		return ErrForbidden
	case device.HasToken && !d.accounts.askLedger():
		return d.admitOwner(ctx, h.caller.Device, device)
	}
	return nil
}

// admitOwner notes the first use of a device's own token: from then on fleet
// tokens no longer act for it.
func (d *Dispatcher) admitOwner(ctx context.Context, id devices.ID, device *store.Device) error {
	if device == nil { // deleted meanwhile
		return ErrForbidden
	}
	if device.OwnToken {
		return nil
	}
	if err := d.store.MarkOwnToken(ctx, string(id)); err != nil {
		return fmt.Errorf("%w: noting the use of a token: %w", ErrUnavailable, err)
	}
	return nil
}

func (d *Dispatcher) register(ctx context.Context, h *handling) error {
	device, err := d.ensure(ctx, h.caller.Device)
	if err == nil {
		h.view.Device = &device
	}
	return err
}

func (d *Dispatcher) ensure(ctx context.Context, id devices.ID) (store.Device, error) {
	device, err := d.store.EnsureDevice(ctx, string(id))
	if err != nil {
		return device, fmt.Errorf("%w: registering a device: %w", ErrUnavailable, err)
	}
	return device, nil
}

// enroll gives the device a token of its own with this reply. Until it was
// used once a lost reply can be asked for again, and then replaces it.
func (d *Dispatcher) enroll(ctx context.Context, h *handling) error {
	if err := d.register(ctx, h); err != nil {
		return err
	}
	token := NewToken()
	hash := HashToken(token)
	err := d.accounts.inTurn(ctx, h.caller.Device, token, func(set store.SetAccount) error {
		return d.store.EnrollDevice(ctx, string(h.caller.Device), hash[:], set)
	})
	if errors.Is(err, store.ErrExists) { // it used one meanwhile
		return ErrForbidden
	}
	if err != nil {
		return fmt.Errorf("%w: enrolling a device: %w", ErrUnavailable, err)
	}
	h.reply.Credential = token
	return nil
}

// knownTokens spares the ledger a look-up per report. Only hits are kept, and
// only for a while, so that a revoked token dies on every replica.
type knownTokens struct {
	now func() time.Time
	mu  sync.Mutex
	hit map[[sha256.Size]byte]knownToken
}

type knownToken struct {
	token store.Token
	until time.Time
}

const (
	tokenMemory = 5 * time.Second
	tokensKept  = 100_000 // beyond it all are forgotten: a bound, not a policy
)

func newKnownTokens(now func() time.Time) *knownTokens {
	return &knownTokens{now: now, hit: make(map[[sha256.Size]byte]knownToken)}
}

func (k *knownTokens) get(hash [sha256.Size]byte) (store.Token, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.hit[hash]
	return e.token, ok && k.now().Before(e.until)
}

func (k *knownTokens) put(hash [sha256.Size]byte, t store.Token) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.hit) >= tokensKept {
		clear(k.hit)
	}
	k.hit[hash] = knownToken{token: t, until: k.now().Add(tokenMemory)}
}

// forget drops the tokens of a device; on other replicas they die by their age.
func (k *knownTokens) forget(device devices.ID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	maps.DeleteFunc(k.hit, func(_ [sha256.Size]byte, e knownToken) bool { return e.token.Device == string(device) })
}
