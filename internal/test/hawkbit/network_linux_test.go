package hawkbit

import (
	"net"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fleetslots/dispatcher/internal/test/must"
)

// network is a network namespace with a loopback interface. swupdate binds an abstract socket with one of 11 names, and ends with status 2 if
// all 11 are in use. Such names belong to a network namespace, so more than 11 instances on one machine need several namespaces.
type network struct{ tasks chan func() }

// newNetwork creates a network namespace. It skips the test if the test may not create one.
func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{make(chan func())}
	created := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread is in the namespace, and ends with this goroutine
		err := enterNamespace()
		created <- err
		if err != nil {
			return
		}
		for task := range n.tasks {
			task()
		}
	}()
	if err := <-created; err != nil {
		skipOrFail(t, "creating a network namespace (needs root): "+err.Error())
	}
	t.Cleanup(func() { close(n.tasks) })
	return n
}

// enterNamespace moves the thread into a new network namespace, and starts its loopback interface.
func enterNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(socket) }()
	loopback, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	loopback.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, loopback)
}

// runInside calls task on the thread that is in the namespace. Sockets and processes that task creates belong to the namespace. If n is nil,
// task runs in the namespace of the test.
func (n *network) runInside(task func()) {
	if n == nil {
		task()
		return
	}
	done := make(chan struct{})
	n.tasks <- func() { defer close(done); task() }
	<-done
}

// listen returns a listener at address in the namespace. It may be used in the whole test.
func (n *network) listen(t *testing.T, address string) (listener net.Listener) {
	t.Helper()
	var err error
	n.runInside(func() { listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address) })
	must.Succeed(t, err)
	return listener
}
