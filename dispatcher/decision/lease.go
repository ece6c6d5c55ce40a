package decision

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/store"
)

// LeaseID returns the id of the lease that task gets if it is granted now. nonce makes the ids of different reports different.
func LeaseID(task store.Candidate, nonce string) string {
	return fmt.Sprintf("%d.%d.%s", task.Task, task.Attempt, nonce)
}

// TaskIDOfLease returns the id of the task for which LeaseID made leaseID. If leaseID is not a lease id, it returns 0.
func TaskIDOfLease(leaseID string) (taskID int64) {
	task, _, _ := strings.Cut(leaseID, ".")
	id, err := strconv.ParseInt(task, 10, 64)
	if err != nil {
		return 0
	}
	return id
}
