echo crewkit-begin
input | show
echo crewkit-end
