echo crewkit-begin
set -- $k/done.*
if [ -d $k/ready ] || [ -L $k/lock ] || [ -d "$1" ]; then lock; finish; rm -rf $k/done.*; unlock; fi
look
echo crewkit-end
