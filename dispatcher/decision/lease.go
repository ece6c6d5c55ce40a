package decision

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/store"
)

// LeaseID returns the id of the lease that a task gets if it is granted now. nonce makes
// the ids of different reports different.
func LeaseID(c store.Candidate, nonce string) string {
	return fmt.Sprintf("%d.%d.%s", c.Task, c.Attempt, nonce)
}

// LeaseTask returns the task of a lease id. It returns 0 if LeaseID did not make the id.
func LeaseTask(lease string) int64 {
	task, _, _ := strings.Cut(lease, ".")
	id, err := strconv.ParseInt(task, 10, 64)
	if err != nil {
		return 0
	}
	return id
}
